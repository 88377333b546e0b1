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
	SelectState  string // of a message that is not parked
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

var commonOutbox = Outbox{
	Insert:      insertOutbox,
	InsertAlone: insertOutbox,
	SelectGuard: `SELECT 1`,

	SelectHighest: `
		SELECT MAX(id)
		FROM millrace_outbox
		WHERE id > ?`,

	SelectParked: `
		SELECT ` + outboxColumns + `, event_type, last_error, due_at AS parked_at
		FROM millrace_outbox
		WHERE status = 3 AND id > ?
		ORDER BY id
		LIMIT ?`,
	ListParked: `
		SELECT ` + outboxOutline + `, event_type, last_error, due_at AS parked_at
		FROM (
			SELECT id AS page_id FROM millrace_outbox
			WHERE status = 3 AND id > ?
			ORDER BY id
			LIMIT ?) page
		JOIN millrace_outbox ON id = page_id
		ORDER BY id`,
	SelectState: `
		SELECT status
		FROM millrace_outbox
		WHERE id = ?`,
	RetryParked: `
		UPDATE millrace_outbox
		SET status = 1, due_at = {now}, attempts = 0
		WHERE id = ? AND status = 3`,
	DropParked: `
		DELETE FROM millrace_outbox
		WHERE id = ? AND status = 3`,

	SelectEnds: `
		SELECT COALESCE((SELECT MIN(id) FROM millrace_outbox), 1) AS lowest,
			COALESCE((SELECT MAX(id) FROM millrace_outbox), 0) AS highest`,
	SelectNext: `
		SELECT id, created_at
		FROM millrace_outbox
		WHERE id >= ?
		ORDER BY id
		LIMIT 1`,
	SelectCaused: `
		SELECT id, topic, order_key, uuid, event_type, status, attempts, created_at, sent_at, last_error
		FROM millrace_outbox
		WHERE id >= ? AND id <= ? AND cause = ?
		ORDER BY id
		LIMIT ?`,

	SelectSent: `
		SELECT ` + outboxColumns + `, event_type, created_at, sent_at
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND status = 4 AND (? IS NULL OR topic = ?) AND created_at >= ? AND created_at < ?
		ORDER BY id
		LIMIT ?`,
	CountSent: `
		SELECT topic, COUNT(*) AS messages, MIN(created_at) AS first_at, MAX(created_at) AS last_at, MAX(id) AS last_id
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND status = 4 AND (? IS NULL OR topic = ?) AND created_at >= ? AND created_at < ?
		GROUP BY topic
		ORDER BY topic`,

	InsertRelay: `
		INSERT INTO millrace_outbox_relays (token, name, started_at, until)
		VALUES (?, ?, {now}, {now} + ?)`,
	BeatRelay: `
		UPDATE millrace_outbox_relays
		SET until = {now} + ?
		WHERE token = ? AND until > {now}`,
	DeleteRelay: `
		DELETE FROM millrace_outbox_relays
		WHERE token = ?`,
	CountExpired: `
		SELECT COUNT(*)
		FROM millrace_outbox_relays
		WHERE until <= {now}`,
	DeleteExpired: `
		DELETE FROM millrace_outbox_relays
		WHERE until <= {now}`,
	SelectRelays: `
		SELECT token
		FROM millrace_outbox_relays
		ORDER BY token`,
	ListRelays: `
		SELECT token, name, started_at, until, {now} AS now
		FROM millrace_outbox_relays
		ORDER BY started_at, token`,
	InsertLayout: `
		INSERT INTO millrace_outbox_layout (id, generation, shards, target)
		VALUES (1, 1, ?, ?)
		ON CONFLICT (id) DO NOTHING`,
	SelectLayout: `
		SELECT generation, shards, target
		FROM millrace_outbox_layout
		WHERE id = 1`,
	SwitchLayout: `
		UPDATE millrace_outbox_layout
		SET generation = generation + 1, shards = ?, target = ?
		WHERE id = 1 AND generation = ?`,
	SelectShards: `
		SELECT shard, owner
		FROM millrace_outbox_shards
		WHERE generation = ?
		ORDER BY shard`,
	ClaimShards: `
		UPDATE millrace_outbox_shards
		SET owner = ?
		WHERE generation = ? AND (? >> shard) & 1 = 1 AND owner = ?`,
	FreeShards: `
		UPDATE millrace_outbox_shards
		SET owner = 0
		WHERE owner = ?`,

	Notify: `SELECT 1`,
	Listen: `SELECT 1`,
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

const (
	insertOutbox = `
		INSERT INTO millrace_outbox (key_hash, topic, order_key, uuid, event_type, metadata, payload, cause, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now})`

	// relayAlive is completed by a token and a parenthesis.
	relayAlive = `EXISTS (SELECT 1 FROM millrace_outbox_relays r WHERE r.until > {now} AND r.token = `

	// What a relay reads of a message.
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
