package dialect

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Outbox holds the statements of package outbox. A list is one argument, a JSON array made
// by [IDs] or [Asides]; it comes first. The last argument of a statement that changes
// rows on behalf of a relay is the relay's token: without a valid lease nothing happens.
type Outbox struct {
	// Insert stores one message in a transaction; [InsertMany] makes it store several. Where
	// the server can end a transaction unseen, and can be asked, it fails outside of one
	// with a [NoTransaction]. InsertAlone is for outside. SelectGuard tells whether Insert does.
	Insert      string
	InsertAlone string
	SelectGuard string

	// Reading, without what the reader has in hand. The mask has a bit for each shard that
	// the reader owns. SelectPending tells of a message with an order the id of the one that is
	// unsent before it; where there is much of the key, it may say -1, for one that is not known.
	SelectPending string
	SelectDue     string
	SelectNextDue string

	// SelectAside tells which of some messages are still set aside.
	SelectAside string

	// SelectKey reads what is unsent of keys, each behind an id: also what is set aside, if the others
	// wait for it. See [Outbox.Keys]. ListKeys walks from a key on: it lists the keys of
	// that many unsent messages.
	SelectKey     string
	KeysAreListed bool // by SelectKey; else it reads one
	ListKeys      string

	SelectHighest string // id behind one; NULL for none

	// What became of messages.
	DeleteSent string
	KeepSent   string
	SetAside   string
	Postpone   string
	HoldBack   string

	// Operators.
	SelectParked string
	ListParked   string // SelectParked without payloads
	RetryParked  string
	DropParked   string
	PurgeSent    string

	// CountBacklog counts those of each state that are not sent up to a limit, given four times,
	// and tells the age of the oldest that it counted: of those that are held back, without the keys that the first
	// 10,000 parked ones block.
	CountBacklog string

	// What one message caused: ids grow with the time of storing, so the time is found by
	// them, and no index is kept for the cause.
	SelectEnds   string
	SelectNext   string
	SelectCaused string

	// What was sent and is kept, between two ids, from and below which time of storing, of a topic
	// given twice, where NULL means any.
	SelectSent string
	CountSent  string

	// Relays and the shards they own.
	InsertRelay   string
	BeatRelay     string
	DeleteRelay   string
	CountExpired  string
	DeleteExpired string
	SelectRelays  string
	ListRelays    string
	InsertLayout  string
	SelectLayout  string
	SwitchLayout  string
	InsertShards  string // as many as are given, but those that are there
	SelectShards  string
	ClaimShards   string // those of a mask that have one owner
	FreeShards    string

	// Waking relays of other processes, where the database can.
	Notifies bool
	Notify   string
	Listen   string
}

// StandsSavepoint is a savepoint that is set and released to see whether a transaction stands.
const StandsSavepoint = `millrace_stands`

// States of a message in the outbox.
const (
	OutboxPending = 0
	OutboxRetry   = 1 // failed, to be tried again
	OutboxHeld    = 2 // waits behind another one of its key
	OutboxParked  = 3 // for an operator
	OutboxSent    = 4 // kept for a while
)

// outboxColumns is what a relay reads of a message.
const (
	outboxColumns = outboxOutline + `, payload`
	outboxOutline = `id, key_hash, blocked_key, status, attempts, topic, uuid, order_key, metadata`
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

// name puts in the channel by which relays of one outbox are woken.
func (o *Outbox) name(tables string) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tables)) // a hash takes everything
	channel := fmt.Sprintf("outbox_%016x", h.Sum64())
	o.Notify = strings.ReplaceAll(o.Notify, "{channel}", channel)
	o.Listen = strings.ReplaceAll(o.Listen, "{channel}", channel)
}

var numbered = regexp.MustCompile(`\$(\d+)`)

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

// InsertMany is Insert or InsertAlone for n messages: the arguments are repeated n times.
func InsertMany(insert string, n int) string {
	head, row, _ := strings.Cut(insert, "VALUES ")
	return head + "VALUES " + row + repeated(", ", row, n)
}

// repeated is part n-1 times more, with arguments of its own each time.
func repeated(separator, part string, n int) string {
	number := func(p string) int {
		k, err := strconv.Atoi(p[1:])
		if err != nil {
			panic(err) // digits
		}
		return k
	}
	width := 0
	for _, p := range numbered.FindAllString(part, -1) {
		width = max(width, number(p))
	}
	var b strings.Builder
	for i := 1; i < n; i++ {
		b.WriteString(separator)
		b.WriteString(numbered.ReplaceAllStringFunc(part, func(p string) string {
			return fmt.Sprintf("$%d", number(p)+i*width)
		}))
	}
	return b.String()
}
