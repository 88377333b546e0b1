package dialect

import (
	"encoding/json"
	"slices"
)

// IDs encodes ids, or keys, as the one argument that a statement takes for a list.
func IDs(ids []int64) string { return list(ids) }

// Row names a message of the outbox. A replica that lagged behind and becomes the primary may give the id of a message
// that it does not have to another one, so the time of storing belongs to the name.
type Row struct{ ID, StoredAt int64 }

// Pairs encodes names of messages as one argument.
func Pairs(rows []Row) string {
	pairs := make([][2]int64, len(rows))
	for i, r := range rows {
		pairs[i] = [2]int64{r.ID, r.StoredAt}
	}
	return list(pairs)
}

// Aside is a failed message, an argument of SetAside.
type Aside struct {
	ID       int64  `json:"id"`
	StoredAt int64  `json:"at"`
	Status   int    `json:"status"`
	Delay    int64  `json:"delay"` // microseconds until it is due
	Attempts int    `json:"attempts"`
	Error    string `json:"error"` // UTF-8 without zero bytes
	Blocks   *int64 `json:"blocks,omitempty"`
}

// Asides encodes failed messages as one argument.
func Asides(all []Aside) string { return list(all) }

func list[T any](all []T) string {
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // integers and text always marshal
	}
	return string(text)
}

// Key is an order key for SelectKey to read: the messages behind an id, up to a limit.
type Key struct {
	Hash  int64 `json:"key"`
	After int64 `json:"after"`
	Limit int   `json:"limit"`
}

// Keys returns the statement that reads these keys, and its arguments.
func (o *Outbox) Keys(keys []Key) (query string, args []any) {
	if o.KeysAreListed {
		most := slices.MaxFunc(keys, func(a, b Key) int { return a.Limit - b.Limit }).Limit
		return o.SelectKey, []any{list(keys), most}
	}
	for _, k := range keys {
		args = append(args, k.Hash, k.After, k.Limit)
	}
	return UnionAll(o.SelectKey, len(keys)), args
}
