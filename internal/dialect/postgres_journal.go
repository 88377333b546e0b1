package dialect

var postgresJournal = Journal{
	InsertJournal: `
		INSERT INTO millrace_journal (consumer, message_id, topic, order_key, event_type, event_version, uuid, metadata,
			payload, payload_hash, payload_form, payload_ref, received_at, processed_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, COALESCE($13::BIGINT, ` + postgresNow + `), ` + postgresNow + `)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	DeleteJournal: `
		DELETE FROM millrace_journal
		WHERE consumer = ? AND message_id IN (?)`,
	SelectJournal: `
		SELECT c.name, c.epoch, j.id, j.consumer, j.message_id, j.topic, j.order_key, j.event_type, j.event_version, j.uuid, j.metadata,
			j.payload_hash, j.payload_form, j.payload_ref, j.payload, j.received_at, j.processed_at
		FROM millrace_journal j
		JOIN millrace_consumers c ON c.id = j.consumer
		WHERE j.id > $1 AND j.id <= $2 AND j.consumer = $3 AND ($4::BYTEA IS NULL OR j.topic = $5)
			AND j.processed_at >= $6 AND j.processed_at < $7
		ORDER BY j.id
		LIMIT $8`,
	CountJournal: `
		SELECT j.topic, COUNT(*) AS messages, MIN(j.processed_at) AS first_at, MAX(j.processed_at) AS last_at, MAX(j.id) AS last_id
		FROM millrace_journal j
		WHERE j.id > $1 AND j.id <= $2 AND j.consumer = $3 AND ($4::BYTEA IS NULL OR j.topic = $5)
			AND j.processed_at >= $6 AND j.processed_at < $7
		GROUP BY j.topic
		ORDER BY j.topic`,
	StoryJournal: `
		SELECT c.name, c.epoch, j.received_at, j.processed_at
		FROM millrace_consumers c
		JOIN millrace_journal j ON j.consumer = c.id AND j.message_id = $1
		WHERE c.namespace = $2
		ORDER BY c.name, c.epoch`,
	CountClaims: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN result <> 0 THEN 1 ELSE 0 END), 0)
		FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
}

var postgresReplays = Replays{
	InsertReplay: `
		INSERT INTO millrace_replays (namespace, name, source, spec, reached, last_id, sent, skipped, state, actor, reason,
			started_at, moved_at)
		VALUES ($1, $2, $3, $4, 0, $5, 0, 0, 1, $6, $7, ` + postgresNow + `, ` + postgresNow + `)
		ON CONFLICT (namespace, name) DO NOTHING`,
	SelectReplay: `
		SELECT ` + replayColumns + `
		FROM millrace_replays
		WHERE namespace = $1 AND name = $2`,
	ListReplays: `
		SELECT ` + replayColumns + `
		FROM millrace_replays
		WHERE namespace = $1
		ORDER BY id DESC
		LIMIT $2`,
	AdvanceReplay: `
		UPDATE millrace_replays
		SET reached = $1, sent = sent + $2, skipped = skipped + $3, moved_at = ` + postgresNow + `
		WHERE id = $4 AND state = 1 AND reached = $5 AND sent = $6`,
	EndReplay: `
		UPDATE millrace_replays
		SET state = $1, finished_at = ` + postgresNow + `
		WHERE id = $2 AND state = 1`,
}
