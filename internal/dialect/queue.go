package dialect

// Queue holds the statements by which open messages are delivered.
type Queue struct {
	StoreMessage  string
	SelectStored  string
	SelectAllowed string // whether an operator wants a message handled although it was replayed
	AllowMessage  string // takes the hash of its payload last: another message may be stored under its key
	SelectSettled string

	// SelectNextDue returns which message is due soonest, and whether it stands in a line; SelectDue those that stand in
	// none. SelectFront returns those of either kind that are due soonest, and which of them wait for another
	// one of their order key; SelectHeads the next order keys, and the message that each is to go on with. Both take
	// whether a message that waits for an operator stops its line. LockDue takes some by their ids.
	//
	// SelectNextDue and SelectFront take their arguments for messages that stand in no line and for those that stand in
	// one; so does CountDue.
	SelectNextDue string
	SelectDue     string
	SelectFront   string
	SelectHeads   string
	LockDue       string

	// LeaseOut leases messages that are handed out at once. Unlease undoes the lease of one that was
	// charged for the try that follows.
	LeaseMessages string
	LeaseOut      string
	Unlease       string
	HandOut       string
	ExtendLeases  string
	PutBack       string
	MoveLeased    string
	ParkLeased    string // as one that is in no order: it was not tried
	NameLeased    string // gives one that had no key the id of the key it was found to have
	CloseLeased   string
	SettleLeased  string

	// CompleteLeased and DeleteLeased close several that were handled outside the inbox.
	CompleteLeased string
	DeleteLeased   string
	CompleteClaim  string

	// What is open in older epochs is moved to the new one. The statements Adopt… take the
	// new consumer and id, then the old ones.
	SelectOlderEpochs string
	SelectOpen        string
	SelectAdoptable   string
	AdoptMessage      string
	AdoptClaim        string // one that is superseded stays
	KeepClaim         string // leaves a copy of one that is completed: takes the old ones first
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
		SELECT payload_hash
		FROM millrace_messages
		WHERE consumer = ? AND message_id = ?`,
	SelectSettled: `
		SELECT c.message_id, c.payload_hash, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND NOT EXISTS (
			SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)`,
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
		SET attempts = attempts - 1, lease_token = 0, due_at = {now}
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
	PutBack: `
		UPDATE millrace_messages
		SET due_at = {now}, lease_token = 0,
			status = CASE WHEN status <> 2 THEN status WHEN attempts = 0 THEN 1 ELSE 4 END
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
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
	CloseLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 3, 4)`,
	SettleLeased: `
		UPDATE millrace_messages
		SET status = 3, reason = ?
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status + 0 IN (1, 2, 3, 4)`,
	CompleteClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, 0, 1, {now})
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	SelectOlderEpochs: `
		SELECT id
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch < ?`,
	SelectOpen: `
		SELECT EXISTS (SELECT 1 FROM millrace_messages WHERE consumer = ?)`,
	AdoptMessage: `
		UPDATE millrace_messages
		SET due_at = CASE status WHEN 7 THEN {now} ELSE due_at END, status = CASE status WHEN 7 THEN 1 ELSE status END,
			consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
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
