package dialect

// Queue holds the statements by which open messages are delivered.
type Queue struct {
	StoreMessage  string
	SelectStored  string
	SelectKeys    string // returns under which of some keys a message is stored
	SelectAllowed string // returns whether an operator wants a message handled although it was replayed
	AllowMessage  string // takes the payload's hash last: another message may be stored under the key
	SelectSettled string

	// A message that has an order key stands in the line of that key.
	//
	// SelectNextDue returns how soon the next message is due, and whether it stands in a line. SelectDue returns due
	// messages that stand in no line. SelectFront returns the messages that are due soonest, in lines or not, and which of
	// them are blocked by another message of their line. SelectHeads returns the next order keys and the head of each.
	// SelectFront and SelectHeads take whether a message that waits for an operator stops its line. LockDue locks and
	// returns messages by their ids.
	//
	// SelectNextDue, SelectFront and CountDue take their arguments twice, for messages in no line and for those in lines.
	SelectNextDue string
	SelectDue     string
	SelectFront   string
	SelectHeads   string
	LockDue       string

	// LeaseOut leases messages that are handed out at once. Unlease undoes the lease of messages, takes back
	// the attempt that LeaseMessages counted, and says when they are due again.
	LeaseMessages string
	LeaseOut      string
	Unlease       string
	HandOut       string
	ExtendLeases  string
	HoldLeased    string // ExtendLeases for one message, which waits for who has locked its row
	PutBack       string
	MoveLeased    string
	ParkLeased    string // without an order key: the message was not tried
	NameLeased    string // gives the id of its key to a message that was stored without one
	CloseLeased   string
	SettleLeased  string // changes due_at, too: MySQL does not count a row that stays as it was

	// CompleteLeased and DeleteLeased close messages that were handled outside the inbox.
	CompleteLeased string
	DeleteLeased   string
	CompleteClaim  string

	// DropOpenClaim and DropLeased forget a message whose failure somebody took over, unless JoinMessage
	// has noted that the row stands for a copy as well.
	DropOpenClaim string
	DropLeased    string
	JoinMessage   string

	// These move the open messages of older epochs to the new one. The statements Adopt… take the
	// new consumer and id, then the old ones.
	SelectOlderEpochs string
	SelectOpen        string
	SelectFirst       string // when the first messages of a consumer and a status came
	SelectAdoptable   string
	AdoptMessage      string
	AdoptLate         string // takes the new consumer and id: the message arrives now, if claims of that epoch were deleted
	AdoptClaim        string // not of a superseded claim
	KeepClaim         string // copies a completed claim; takes the consumer and id of the copy first
	ParkAdopted       string // as a collision, under the id that it was given
	AdoptOutcome      string
	AdoptResult       string
	AdoptJournal      string
	AdoptHistory      string
}

var commonQueue = Queue{
	StoreMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, partition_no, offset_no, order_key, event_type,
			event_version, uuid, metadata, payload, payload_hash, reason, original, payload_form, payload_ref, received_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, {now} + ?)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	SelectStored: `
		SELECT payload_hash, status
		FROM millrace_messages
		WHERE consumer = ? AND message_id = ?`,
	SelectSettled: `
		SELECT c.message_id, c.payload_hash, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND NOT EXISTS (
			SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)`,
	SelectKeys: `
		SELECT message_id
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?)`,
	SelectAllowed: `
		SELECT allowed
		FROM millrace_messages
		WHERE consumer = ? AND message_id = ?`,
	AllowMessage: `
		UPDATE millrace_messages
		SET allowed = 1
		WHERE consumer = ? AND message_id = ? AND payload_hash = ?`,
	LeaseMessages: `
		UPDATE millrace_messages
		SET attempts = attempts + ?, lease_token = ?, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?)`,
	LeaseOut: `
		UPDATE millrace_messages
		SET status = CASE WHEN status = 3 THEN status ELSE 2 END, lease_token = ?, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?)`,
	Unlease: `
		UPDATE millrace_messages
		SET attempts = attempts - 1, lease_token = 0, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?)`,
	PutBack: `
		UPDATE millrace_messages
		SET due_at = {now}, lease_token = 0,
			status = CASE WHEN status <> 2 THEN status WHEN attempts = 0 THEN 1 ELSE 4 END
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?)`,
	MoveLeased: `
		UPDATE millrace_messages
		SET status = ?, attempts = ?, last_error = ?, error_group = ?, error_code = ?, reason = ?, reason_code = 0,
			due_at = {now} + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 3, 4)`,
	ParkLeased: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = ?, reason_code = ?, due_at = {now} + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 3, 4)`,
	NameLeased: `
		UPDATE millrace_messages
		SET message_id = ?, payload_hash = ?, original = ?, status = ?, attempts = 0, reason = ?,
			due_at = {now} + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 4)`,
	HoldLeased: `
		UPDATE millrace_messages
		SET due_at = {now} + ?
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 3, 4)`,
	CloseLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 3, 4)`,
	SettleLeased: `
		UPDATE millrace_messages
		SET status = 3, reason = ?, due_at = due_at + 1
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 3, 4)`,
	CompleteClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, 0, 1, {now})
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	DropOpenClaim: `
		DELETE FROM millrace_claims
		WHERE consumer = ? AND message_id = ? AND result = 0`,
	DropLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 4) AND reason_code <> 2`,
	JoinMessage: `
		UPDATE millrace_messages
		SET reason_code = 2, due_at = due_at + 1
		WHERE consumer = ? AND message_id = ? AND status + 0 = 2`,
	SelectOlderEpochs: `
		SELECT id, key_source
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch < ?`,
	SelectOpen: `
		SELECT EXISTS (SELECT 1 FROM millrace_messages WHERE consumer = ?)`,
	AdoptMessage: `
		UPDATE millrace_messages
		SET due_at = CASE status WHEN 7 THEN {now} ELSE due_at END, status = CASE status WHEN 7 THEN 1 ELSE status END,
			consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptLate: `
		UPDATE millrace_messages
		SET received_at = {now}
		WHERE consumer = ? AND message_id = ? AND (
			SELECT c.purge_line FROM millrace_consumers c WHERE c.id = millrace_messages.consumer) > 0`,
	AdoptClaim: `
		UPDATE millrace_claims
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ? AND result <> 3`,
	KeepClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT ?, ?, payload_hash, token, result, processed_at
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ? AND result <> 0`,
	ParkAdopted: `
		UPDATE millrace_messages
		SET original = ?, order_key = NULL, status = ?, reason = ?, due_at = {now} + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ?`,
	AdoptOutcome: `
		UPDATE millrace_outcomes
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptResult: `
		UPDATE millrace_results
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptJournal: `
		UPDATE millrace_journal
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptHistory: `
		UPDATE millrace_history
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
}
