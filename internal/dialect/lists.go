package dialect

import (
	"encoding/json"
	"slices"
)

// IDs is the argument that stands for a list of ids, or of keys.
func IDs(ids []int64) string { return list(ids) }

// Aside is a message that failed, for SetAside.
type Aside struct {
	ID       int64  `json:"id"`
	Status   int    `json:"status"`
	Delay    int64  `json:"delay"` // in microseconds, until it is due
	Attempts int    `json:"attempts"`
	Error    string `json:"error"` // UTF-8 without zero bytes
	Blocks   *int64 `json:"blocks,omitempty"`
}

// Asides is the argument that stands for a list of messages that failed.
func Asides(all []Aside) string { return list(all) }

func list[T any](all []T) string {
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // integers and text always marshal
	}
	return string(text)
}

// Key is one that is read by SelectKey: what is behind an id, up to a limit.
type Key struct {
	Hash  int64 `json:"key"`
	After int64 `json:"after"`
	Limit int   `json:"limit"`
}

// Keys is the statement that reads some keys, with its arguments.
func (o *Outbox) Keys(keys []Key) (query string, args []any) {
	if o.KeysAreListed {
		most := slices.MaxFunc(keys, func(a, b Key) int { return a.Limit - b.Limit }).Limit
		return o.SelectKey, []any{list(keys), most}
	}
	for _, k := range keys {
		args = append(args, k.Hash, k.After, k.Limit)
	}
	return o.SelectKey + repeated("\nUNION ALL", o.SelectKey, len(keys)), args
}
