package dialect

import (
	"fmt"
	"hash/fnv"
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
	SetTarget     string
	SwitchLayout  string
	InsertShard   string
	SelectShards  string
	ClaimShard    string
	FreeShards    string
	DeleteShards  string

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

// name puts in the channel by which relays of one outbox are woken.
func (o *Outbox) name(tables string) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tables)) // a hash takes everything
	channel := fmt.Sprintf("outbox_%016x", h.Sum64())
	o.Notify = strings.ReplaceAll(o.Notify, "{channel}", channel)
	o.Listen = strings.ReplaceAll(o.Listen, "{channel}", channel)
}
