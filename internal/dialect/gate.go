package dialect

// Gate holds the statements that keep an aggregate's versions in order.
type Gate struct {
	// Returning is true if StepAggregate returns the row, in the columns of SelectAggregate.
	Returning bool

	// ClaimAndAdvance is Claim, and AdvanceAggregate if the claim was won: the arguments of both. It changes as many
	// rows as were claimed and advanced. If the claim waits for another transaction, it does not see what that one
	// did to the aggregate, and changes only the claim. It is empty where no statement can change two tables.
	ClaimAndAdvance string

	// AdvanceAggregate takes an aggregate from the version before to this one. It changes no row if the
	// aggregate has another version, or if a message may wait for it.
	AdvanceAggregate string

	// StepAggregate inserts or locks the row of an aggregate. If the row's version is from … and
	// below …, StepAggregate advances it. Arguments: consumer, aggregate; the version, first
	// version, token, message id and payload hash of a new row; from, below, the version to advance to.
	StepAggregate    string
	SelectAggregate  string
	RetreatAggregate string

	// LockAggregates inserts or locks the rows of aggregates, as [Rows] makes it for several; AdvanceAggregates sets
	// their versions, and like RaiseHeld what they hold, unless that is 0. The arguments of both are those of a new row.
	LockAggregates    string
	SelectAggregates  string
	AdvanceAggregates string

	// LockAggregate returns the row in the columns of SelectAggregate, or none if another transaction has locked it.
	LockAggregate string

	// Messages that wait for a version. ExpireHeld removes the message from its order key, HoldMessage
	// if its argument says so: a message that the gate parked must block no other.
	HoldMessage string
	ExpireHeld  string
	RaiseHeld   string
	ReleaseHeld string

	// SelectReleased finds what ReleaseHeld would change. It can be repeated by [ForEach] for several aggregates.
	SelectReleased string

	// CountHeld counts the held messages of an aggregate, up to a limit. It can be repeated by [UnionAll] for several. SQLite,
	// which would sort to group them, returns a row without an aggregate where there are none.
	// SelectHeld lists them by version.
	CountHeld  string
	SelectHeld string

	// SelectHeldAges returns a page of the held messages of a consumer, by id, and whether each has waited too
	// long. It does not use an index on due_at, which would lead through all due messages. SelectExpired reads the
	// expired ones; LockHeld locks those that no other transaction has locked, and returns their ids.
	SelectHeldAges string
	SelectExpired  string
	LockHeld       string

	// SelectWaiting lists held messages, aggregate by aggregate. SelectApplied returns the versions of aggregates.
	SelectWaiting string
	SelectApplied string

	// Operators. SetVersion inserts or updates the row of an aggregate, and never lowers its version.
	SetVersion       string
	SelectVersions   string
	DeleteVersions   string
	ReleaseAll       string // takes ids, of any aggregates
	SelectForgetable string
	LowerPurgeLine   string
}

var commonGate = Gate{
	AdvanceAggregate: `
		UPDATE millrace_versions
		SET version = ?, token = ?, message_id = ?, payload_hash = ?
		WHERE consumer = ? AND aggregate = ? AND version = ? AND held_to < ?`,
	StepAggregate: `
		INSERT INTO millrace_versions AS a (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET
			token = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN EXCLUDED.token ELSE a.token END,
			message_id = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN EXCLUDED.message_id ELSE a.message_id END,
			payload_hash = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN EXCLUDED.payload_hash ELSE a.payload_hash END,
			version = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN ?10 ELSE a.version END
		RETURNING version, first_version, held_to, token, message_id, payload_hash`,
	SelectAggregate: `
		SELECT version, first_version, held_to, token, message_id, payload_hash
		FROM millrace_versions
		WHERE consumer = ? AND aggregate = ?`,
	LockAggregates: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET token = millrace_versions.token`,
	SelectAggregates: `
		SELECT version, first_version, held_to, token, message_id, payload_hash, aggregate
		FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,
	AdvanceAggregates: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash, held_to)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET
			version = EXCLUDED.version, token = EXCLUDED.token, message_id = EXCLUDED.message_id, payload_hash = EXCLUDED.payload_hash,
			held_to = CASE WHEN EXCLUDED.held_to > millrace_versions.held_to THEN EXCLUDED.held_to ELSE millrace_versions.held_to END`,
	RetreatAggregate: `
		UPDATE millrace_versions
		SET version = ?, token = 0, message_id = ?
		WHERE consumer = ? AND aggregate = ? AND token = ?`,
	LockAggregate: `
		SELECT version, first_version, held_to, token, message_id, payload_hash
		FROM millrace_versions
		WHERE consumer = ? AND aggregate = ?
		FOR UPDATE SKIP LOCKED`,

	HoldMessage: `
		UPDATE millrace_messages
		SET status = ?, reason = ?, reason_code = 0, aggregate = ?, version = ?,
			order_key = CASE WHEN ? THEN NULL ELSE order_key END, due_at = {now} + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND status + 0 = ? AND lease_token = ?`,
	ExpireHeld: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = ?, due_at = {now} + ?
		WHERE consumer = ? AND message_id = ? AND status + 0 = 7`,
	ReleaseHeld: `
		UPDATE millrace_messages
		SET status = 1, reason = ?, due_at = {now}
		WHERE consumer = ? AND aggregate = ? AND version <= ? AND status = 7`,
	SelectApplied: `
		SELECT aggregate, version
		FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,

	SetVersion: `
		INSERT INTO millrace_versions AS a (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, 0)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET
			version = EXCLUDED.version, token = EXCLUDED.token, message_id = EXCLUDED.message_id, payload_hash = 0
			WHERE a.version <= EXCLUDED.version`,
	SelectVersions: `
		SELECT aggregate
		FROM millrace_versions
		WHERE consumer = ? AND aggregate > ?
		ORDER BY aggregate
		LIMIT ?`,
	DeleteVersions: `
		DELETE FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,
	ReleaseAll: `
		UPDATE millrace_messages
		SET status = 1, reason = ?, due_at = {now}
		WHERE id IN (?) AND status + 0 = 7`,
	SelectForgetable: `
		SELECT c.message_id
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id > ? AND c.result <> 0 AND NOT EXISTS (
			SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
		ORDER BY c.message_id
		LIMIT ?`,
	LowerPurgeLine: `
		UPDATE millrace_consumers
		SET purge_line = 0
		WHERE id = ?`,
}

// Blobs holds the statements for payloads that are kept outside the rows of their messages.
type Blobs struct {
	// InsertBlob waits for another transaction that inserts the same name. It does nothing if the
	// name exists.
	InsertBlob     string
	SelectBlob     string
	SelectReferred string
	SelectNames    string
	DeleteBlob     string
}

var commonBlobs = Blobs{
	InsertBlob: `
		INSERT INTO millrace_blobs (name, body)
		VALUES (?, ?)
		ON CONFLICT (name) DO NOTHING`,
	SelectBlob: `
		SELECT body
		FROM millrace_blobs
		WHERE name = ?`,
	SelectReferred: `
		SELECT payload_ref
		FROM millrace_messages
		WHERE payload_ref IN (?)
		UNION ALL
		SELECT payload_ref
		FROM millrace_journal
		WHERE payload_ref IN (?)`,
	SelectNames: `
		SELECT name
		FROM millrace_blobs
		WHERE name > ? AND name < ?
		ORDER BY name
		LIMIT ?`,
	DeleteBlob: `
		DELETE FROM millrace_blobs
		WHERE name = ?`,
}

// NeverDue is a delay in microseconds for messages that must not become due: a hundred years.
const NeverDue = 100 * 365 * 24 * 3600 * 1_000_000
