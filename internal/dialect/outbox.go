package dialect

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// Outbox holds the statements of package outbox. A list is one argument, a JSON array made
// by [IDs] or [Asides], and comes first. A statement that changes rows on behalf of a relay takes
// the relay's token last, and changes nothing if that relay's lease has expired.
type Outbox struct {
	// Insert stores one message in a transaction; [InsertMany] makes it store several. On MariaDB,
	// which can end a transaction unnoticed, Insert fails outside of one with [NoTransaction].
	// InsertAlone works outside of a transaction. SelectGuard returns whether Insert checks that,
	// the connection's character set if that would change texts, and the server's packet.
	Insert      string
	InsertAlone string
	SelectGuard string

	// These read messages, except those that the reader already has. Their mask has a bit for each
	// shard that the reader owns. For a message with an order key, SelectPending returns the id of
	// the unsent message before it; where SelectShortKeys is not empty, that tells.
	SelectPending string
	SelectDue     string

	// SelectShortKeys takes a list of keys, and returns the ids of the unsent messages of those that have few.
	SelectShortKeys string

	// SelectFirsts takes a list of keys, and returns the first unsent message of each.
	SelectFirsts string

	// SelectNextDue returns how soon the next retry is due, SelectLaterDue how soon the next that is not due yet.
	SelectNextDue  string
	SelectLaterDue string

	// SelectKnown returns what has these ids now.
	SelectKnown string

	// SelectKey reads the unsent messages of keys, each behind an id. It includes a message that was
	// set aside if the others of its key wait for it. See [Outbox.Keys]. ListKeys lists the keys of so
	// many unsent messages, from a key on.
	SelectKey     string
	KeysAreListed bool // SelectKey takes a list of keys; else one key
	ListKeys      string

	SelectHighest string // the highest id above one; NULL if there is none

	// The results of sending.
	DeleteSent string
	KeepSent   string
	SetAside   string
	Postpone   string
	HoldBack   string

	// Operators.
	SelectParked string
	ListParked   string // SelectParked without payloads
	SelectState  string // tells a message that is not parked from a missing one
	RetryParked  string
	DropParked   string
	PurgeSent    string

	// CountBacklog counts the unsent messages of each status, up to a limit, which it takes four times, and
	// returns the age of the oldest that it counted. For the age of held ones it ignores the keys that the first
	// 10,000 parked messages block.
	CountBacklog string

	// These find the messages that one message caused. Ids grow with the time of storing, so a range of
	// time is found by ids, and the cause needs no index.
	SelectEnds   string
	SelectNext   string
	SelectCaused string

	// Sent messages that are kept. Arguments: two ids between which to read; a topic, twice, where NULL
	// means any; the time of storing, from and below.
	SelectSent string
	CountSent  string

	// SelectWhereabouts returns the name of the database, and when its tables were made: both are the same however it is reached.
	SelectWhereabouts string

	// Relays and the shards they own.
	InsertRelay   string
	BeatRelay     string
	NoteBroker    string // takes the error and for how long it lasts, NULL where messages get through
	DeleteRelay   string
	CountExpired  string
	DeleteExpired string
	SelectRelays  string
	ListRelays    string
	InsertLayout  string
	SelectLayout  string // also the connection's character set if that would change texts
	SwitchLayout  string
	InsertShards  string // takes the number of shards; skips those that exist
	SelectShards  string
	ClaimShards   string // takes over the shards of a mask from one owner
	FreeShards    string

	// These wake relays of other processes, if the database can.
	Notifies bool
	Notify   string
	Listen   string
}

var commonOutbox = Outbox{
	Insert:      insertOutbox,
	InsertAlone: insertOutbox,
	SelectGuard: `SELECT 1, '', 0`,

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

	InsertRelay: `
		INSERT INTO millrace_outbox_relays (token, name, started_at, until)
		VALUES (?, ?, {now}, {now} + ?)`,
	BeatRelay: `
		UPDATE millrace_outbox_relays
		SET until = {now} + ?
		WHERE token = ? AND until > {now}`,
	NoteBroker: `
		UPDATE millrace_outbox_relays
		SET broker_error = ?, broker_out_since = {now} - ?
		WHERE token = ?`,
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
		SELECT token, name, started_at, until, broker_error, broker_out_since, {now} AS now
		FROM millrace_outbox_relays
		ORDER BY started_at, token`,
	InsertLayout: `
		INSERT INTO millrace_outbox_layout (id, generation, shards, target)
		VALUES (1, 1, ?, ?)
		ON CONFLICT (id) DO NOTHING`,
	SelectLayout: `
		SELECT generation, shards, target, ''
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

// StandsSavepoint is the savepoint that tells whether a transaction is still open.
const StandsSavepoint = `millrace_stands`

// States of a message in the outbox.
const (
	OutboxPending = 0
	OutboxRetry   = 1 // failed, to be tried again
	OutboxHeld    = 2 // waits behind another message of its key
	OutboxParked  = 3 // for an operator
	OutboxSent    = 4 // kept for a while
)

const (
	insertOutbox = `
		INSERT INTO millrace_outbox (key_hash, topic, order_key, uuid, event_type, metadata, payload, cause, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now})`

	// relayAlive is completed by a token and a parenthesis.
	relayAlive = `EXISTS (SELECT 1 FROM millrace_outbox_relays r WHERE r.until > {now} AND r.token = `

	// The columns that a relay reads.
	outboxColumns = outboxOutline + `, payload`
	outboxOutline = `id, key_hash, blocked_key, status, attempts, topic, uuid, order_key, metadata`
)

// name sets the channel on which the relays of one outbox are notified.
func (o *Outbox) name(tables string) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tables)) // a hash takes everything
	channel := fmt.Sprintf("outbox_%016x", h.Sum64())
	o.Notify = strings.ReplaceAll(o.Notify, "{channel}", channel)
	o.Listen = strings.ReplaceAll(o.Listen, "{channel}", channel)
}
