package dialect

// common is the statements that at least two databases share, except those below the type of a group. If the third
// database differs, its own text replaces the shared one.
//
// A statement that finds a message by its key or its id compares status + 0, for which PostgreSQL has no statistics. If a
// status was rare when the table was analysed, PostgreSQL would go by the status, and read all messages that have it now.
var common = Dialect{
	CreateVersions: `CREATE TABLE IF NOT EXISTS millrace_schema (version INTEGER NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL)`,
	SelectVersion:  `SELECT COALESCE(MAX(version), 0) FROM millrace_schema`,
	InsertVersion: `
		INSERT INTO millrace_schema (version, applied_at)
		VALUES (?, {now})
		ON CONFLICT (version) DO UPDATE SET applied_at = millrace_schema.applied_at`,

	Now: `SELECT {now}`,

	InsertConsumer: `
		INSERT INTO millrace_consumers (id, namespace, name, epoch, key_source, retention, window_us, on_replay, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now})
		ON CONFLICT DO NOTHING`,
	SelectConsumer: `
		SELECT id, namespace, name, epoch, key_source, retention, window_us, purge_line, paused, created_at,
			purged_at, on_replay, served_until > {now} AS served, {charset} AS charset
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch = ?`,
	SelectConsumers: `
		SELECT id, namespace, name, epoch, key_source, retention, window_us, purge_line, paused, created_at,
			purged_at, on_replay, served_until > {now} AS served
		FROM millrace_consumers
		ORDER BY namespace, name, epoch`,
	UpdateConsumer: `
		UPDATE millrace_consumers
		SET retention = ?, window_us = ?, on_replay = ?
		WHERE id = ?`,
	SetKeySource: `
		UPDATE millrace_consumers
		SET key_source = ?
		WHERE id = ? AND LENGTH(key_source) = 0`,
	RaiseRetention: `
		UPDATE millrace_consumers
		SET retention = ?
		WHERE id = ? AND retention > 0 AND retention < ?`,
	LockConsumer: `
		UPDATE millrace_consumers
		SET purge_line = purge_line
		WHERE id = ?`,
	SelectPurgeLine: `
		SELECT purge_line
		FROM millrace_consumers
		WHERE id = ?`,
	RaisePurgeLine: `
		UPDATE millrace_consumers
		SET purge_line = GREATEST(purge_line, ?)
		WHERE id = ?`,
	NotePurge: `
		UPDATE millrace_consumers
		SET purged_at = {now}
		WHERE id = ?`,

	Claim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 1, {now})
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	Lookup: `
		SELECT c.result, c.payload_hash, c.token, c.processed_at, {now} AS now,
			o.topic AS outcome_topic, o.messages AS outcome,
			m.id AS open_id, m.status AS open_status, m.payload_hash AS open_hash
		FROM millrace_claims c
		LEFT JOIN millrace_outcomes o ON o.consumer = c.consumer AND o.message_id = c.message_id
		LEFT JOIN millrace_messages m ON m.consumer = c.consumer AND m.message_id = c.message_id
		WHERE c.consumer = ? AND c.message_id = ?`,
	Retake: `
		UPDATE millrace_claims
		SET token = ?, payload_hash = ?, result = 1, processed_at = {now}
		WHERE consumer = ? AND message_id = ? AND result = 0`,
	SelectClaim: `
		SELECT result, token
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ?`,
	SelectClaims: `
		SELECT message_id, token
		FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
	FailUnlessHeld: `
		SELECT 1 / COUNT(*)
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ? AND token = ?`,
	SelectHeld: `
		SELECT result, token, 1 AS live
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ?`,
	ClaimFormer: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 3, {now})
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	DropClaims: `
		DELETE FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?) AND token = ?`,
	OpenClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 0, {now})
		ON CONFLICT (consumer, message_id) DO UPDATE SET
			token = CASE WHEN millrace_claims.result = 0 THEN millrace_claims.token + 1 ELSE millrace_claims.token END`,
	ReopenClaim: `
		UPDATE millrace_claims
		SET result = 0
		WHERE consumer = ? AND message_id IN (?) AND token = ?`,
	RetakeClaims: `
		UPDATE millrace_claims
		SET token = ?, result = 1, processed_at = {now}
		WHERE consumer = ? AND message_id IN (?) AND result = 0`,
	CloseClaim: `
		UPDATE millrace_claims
		SET result = ?, processed_at = {now}
		WHERE consumer = ? AND message_id = ? AND result = 0`,

	InsertOutcome: `
		INSERT INTO millrace_outcomes (consumer, message_id, topic, messages, created_at)
		VALUES (?, ?, ?, ?, {now})`,
	DeleteOutcomes: `
		DELETE FROM millrace_outcomes
		WHERE consumer = ? AND message_id IN (?)`,
	SelectOutcomes: `
		SELECT o.consumer, c.name, c.epoch, o.message_id, o.topic, o.created_at,
			{now} - o.created_at AS age
		FROM millrace_outcomes o
		JOIN millrace_consumers c ON c.id = o.consumer
		WHERE c.namespace = ? AND (? IS NULL OR c.name = ?) AND (? IS NULL OR c.epoch = ?)
			AND o.created_at <= {now} - ?
		ORDER BY o.created_at, o.consumer, o.message_id
		LIMIT ? OFFSET ?`,
	SelectOutcome: `
		SELECT messages
		FROM millrace_outcomes
		WHERE consumer = ? AND message_id = ?`,
	PutResult: `
		INSERT INTO millrace_results (consumer, message_id, body)
		VALUES (?, ?, ?)
		ON CONFLICT (consumer, message_id) DO UPDATE SET body = EXCLUDED.body`,

	InsertMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, attempts, topic, partition_no, offset_no,
			order_key, event_type, event_version, uuid, metadata, payload, payload_hash, last_error, error_group, error_code,
			reason, reason_code, original, aggregate, version, payload_form, payload_ref, received_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
			{now}, {now} + ?)`,
	TouchMessage: `
		UPDATE millrace_messages
		SET attempts = attempts + 1, last_error = ?, error_group = ?, error_code = ?, due_at = {now} + ?
		WHERE consumer = ? AND message_id = ? AND status + 0 = ?`,
	MoveMessage: `
		UPDATE millrace_messages
		SET status = ?, reason = ?, reason_code = ?, due_at = {now} + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND status + 0 = ?`,
	DeleteMessage: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND status + 0 = ?`,
	SelectMessage: `
		SELECT c.name, c.epoch, c.key_source, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id = ? AND c.namespace = ?`,

	StoryClaims: `
		SELECT c.name, c.epoch, k.message_id, k.result, k.processed_at,
			o.created_at AS outcome_at, o.topic AS outcome_topic, o.messages AS outcome, r.body
		FROM millrace_consumers c
		JOIN millrace_claims k ON k.consumer = c.id AND k.message_id = ?
		LEFT JOIN millrace_outcomes o ON o.consumer = k.consumer AND o.message_id = k.message_id
		LEFT JOIN millrace_results r ON r.consumer = k.consumer AND r.message_id = k.message_id
		WHERE c.namespace = ?
		ORDER BY c.name, c.epoch`,
	StoryMessages: `
		SELECT c.name, c.epoch, ` + messageColumns + `
		FROM millrace_consumers c
		JOIN millrace_messages m ON m.consumer = c.id AND m.message_id = ?
		WHERE c.namespace = ?
		UNION ALL
		SELECT * FROM (
			SELECT c.name, c.epoch, ` + messageColumns + `
			FROM millrace_messages m
			JOIN millrace_consumers c ON c.id = m.consumer
			WHERE c.namespace = ? AND m.original = ?
			LIMIT ?
		) page`,
	StoryAudit: `
		SELECT a.id AS id, c.name, c.epoch, a.at AS at, a.actor, a.action, a.reason, a.detail
		FROM millrace_audit a
		JOIN millrace_consumers c ON c.id = a.consumer
		WHERE c.namespace = ? AND a.message_id = ?
		UNION ALL
		SELECT a.id AS id, c.name, c.epoch, b.at AS at, a.actor, a.action, a.reason, b.detail
		FROM millrace_audit_messages b
		JOIN millrace_audit a ON a.id = b.entry
		JOIN millrace_consumers c ON c.id = a.consumer
		WHERE c.namespace = ? AND b.message_id = ?
		UNION ALL
		SELECT * FROM (
			SELECT a.id AS id, c.name, c.epoch, b.at AS at, a.actor, a.action, a.reason, b.detail
			FROM millrace_audit_messages b
			JOIN millrace_audit a ON a.id = b.entry
			JOIN millrace_consumers c ON c.id = a.consumer
			WHERE c.namespace = ? AND b.original = ?
			LIMIT ?
		) page
		ORDER BY at, id`,
	StoryDropped: `
		SELECT c.name, c.epoch, d.at, d.topic, d.reason
		FROM millrace_dropped d
		JOIN millrace_consumers c ON c.id = d.consumer
		WHERE c.namespace = ? AND d.message_id = ?
		ORDER BY d.id DESC
		LIMIT ?`,
	InsertAudit: `
		INSERT INTO millrace_audit (actor, action, reason, consumer, message_id, detail, at)
		VALUES (?, ?, ?, ?, ?, ?, {now})`,
	InsertDropped: `
		INSERT INTO millrace_dropped (consumer, message_id, topic, reason, at)
		VALUES (?, ?, ?, ?, {now})`,

	SelectClaimsPage: `
		SELECT message_id, processed_at, result
		FROM millrace_claims
		WHERE consumer = ? AND message_id > ?
		ORDER BY message_id
		LIMIT ?`,
	CountExpired: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN result <> 0 AND processed_at < ? THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT result, processed_at FROM millrace_claims
			WHERE consumer = ?
			ORDER BY message_id
			LIMIT ?) counted`,
	DeleteClaims: `
		DELETE FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
	DeleteResults: `
		DELETE FROM millrace_results
		WHERE consumer = ? AND message_id IN (?)`,
	// A claim is found by LIMIT 1: PostgreSQL, without statistics, expects more of a key the more rows there are, and
	// would compile the statement (jit).
	SelectShadowed: `
		SELECT page.id, page.consumer, page.message_id, COALESCE((
				SELECT c.result <> 0 AND c.payload_hash = page.payload_hash OR c.result = 4
				FROM millrace_claims c
				WHERE c.consumer = page.consumer AND c.message_id = page.message_id
				LIMIT 1), FALSE) AND (page.lease_token = 0 OR page.due_at <= {now}) AS shadowed
		FROM (
			SELECT id, consumer, message_id, payload_hash, lease_token, due_at
			FROM millrace_messages
			WHERE id > ?
			ORDER BY id
			LIMIT ?) page
		ORDER BY page.id`,
	DeleteMessages: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND id IN (?)`,

	SelectActivity: `
		SELECT c.name, c.epoch, a.minute, a.completed, a.failed, a.duplicates, a.stale, a.held, a.parked, a.handling_us
		FROM millrace_activity a
		JOIN millrace_consumers c ON c.id = a.consumer
		WHERE a.minute >= ? AND c.namespace = ?
		ORDER BY a.minute, c.name, c.epoch`,

	BeatProcess: `
		INSERT INTO millrace_processes (namespace, name, token, host, pid, program, version, millrace, consumers, serves,
			started_at, seen_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now} - ?, {now})
		ON CONFLICT (namespace, name, token) DO UPDATE SET
			consumers = EXCLUDED.consumers, serves = EXCLUDED.serves, seen_at = EXCLUDED.seen_at`,
	LeaveProcess: `
		DELETE FROM millrace_processes
		WHERE namespace = ? AND name = ? AND token = ?`,
	SelectProcesses: `
		SELECT name, token, host, pid, program, version, millrace, consumers, serves, started_at, seen_at, {now} AS now
		FROM millrace_processes
		WHERE namespace = ? AND name >= ? AND (name > ? OR token > ?)
		ORDER BY name, token
		LIMIT ?`,
	PurgeProcesses: `
		DELETE FROM millrace_processes
		WHERE seen_at < ?`,

	AcquireLease: `
		INSERT INTO millrace_leases (consumer, message_id, token, until)
		VALUES (?, ?, ?, {now} + ?)
		ON CONFLICT (consumer, message_id) DO UPDATE SET token = EXCLUDED.token, until = EXCLUDED.until
			WHERE millrace_leases.until <= {now}`,
	SelectLease: `
		SELECT token, until - {now} AS remaining
		FROM millrace_leases
		WHERE consumer = ? AND message_id = ?`,
	ConfirmLease: `
		UPDATE millrace_leases
		SET token = 0, until = {now} + ?
		WHERE consumer = ? AND message_id = ? AND token = ?`,
	ExtendLease: `
		UPDATE millrace_leases
		SET until = {now} + ?
		WHERE consumer = ? AND message_id = ? AND token = ?`,
	ReleaseLease: `
		DELETE FROM millrace_leases
		WHERE consumer = ? AND message_id = ? AND token = ?`,

	Outbox:  commonOutbox,
	Gate:    commonGate,
	Queue:   commonQueue,
	Remedy:  commonRemedy,
	Blobs:   commonBlobs,
	Journal: commonJournal,
	Replays: commonReplays,
	Steps:   commonSteps,
	History: commonHistory,
}
