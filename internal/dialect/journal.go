package dialect

// Journal holds the statements for completed messages that are kept whole.
type Journal struct {
	InsertJournal string
	DeleteJournal string

	// SelectJournal and CountJournal take two ids between which to read, a consumer, a topic, twice, where
	// NULL means any, and the time of processing, from and below.
	SelectJournal string
	CountJournal  string

	StoryJournal string

	// CountClaims returns how many of the ids a consumer has claimed, and how many it has completed.
	CountClaims string
}

var commonJournal = Journal{
	DeleteJournal: `
		DELETE FROM millrace_journal
		WHERE consumer = ? AND message_id IN (?)`,
	SelectJournal: `
		SELECT c.name, c.epoch, j.id, j.consumer, j.message_id, j.topic, j.order_key, j.event_type, j.event_version, j.uuid, j.metadata,
			j.payload_hash, j.payload_form, j.payload_ref, j.payload, j.received_at, j.processed_at
		FROM millrace_journal j
		JOIN millrace_consumers c ON c.id = j.consumer
		WHERE j.id > ? AND j.id <= ? AND j.consumer = ? AND (? IS NULL OR j.topic = ?)
			AND j.processed_at >= ? AND j.processed_at < ?
		ORDER BY j.id
		LIMIT ?`,
	CountJournal: `
		SELECT j.topic, COUNT(*) AS messages, MIN(j.processed_at) AS first_at, MAX(j.processed_at) AS last_at, MAX(j.id) AS last_id
		FROM millrace_journal j
		WHERE j.id > ? AND j.id <= ? AND j.consumer = ? AND (? IS NULL OR j.topic = ?)
			AND j.processed_at >= ? AND j.processed_at < ?
		GROUP BY j.topic
		ORDER BY j.topic`,
	StoryJournal: `
		SELECT c.name, c.epoch, j.received_at, j.processed_at
		FROM millrace_consumers c
		JOIN millrace_journal j ON j.consumer = c.id AND j.message_id = ?
		WHERE c.namespace = ?
		ORDER BY c.name, c.epoch`,
	CountClaims: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN result <> 0 THEN 1 ELSE 0 END), 0)
		FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
}

// Replays holds the statements of package replay.
type Replays struct {
	InsertReplay string
	SelectReplay string
	ListReplays  string

	// AdvanceReplay takes last the progress that its caller last wrote or read. Of two processes that
	// run the same replay, one changes no row.
	AdvanceReplay string
	EndReplay     string
}

var commonReplays = Replays{
	InsertReplay: `
		INSERT INTO millrace_replays (namespace, name, source, spec, reached, last_id, sent, skipped, state, actor, reason,
			started_at, moved_at)
		VALUES (?, ?, ?, ?, 0, ?, 0, 0, 1, ?, ?, {now}, {now})
		ON CONFLICT (namespace, name) DO NOTHING`,
	SelectReplay: `
		SELECT ` + replayColumns + `
		FROM millrace_replays
		WHERE namespace = ? AND name = ?`,
	ListReplays: `
		SELECT ` + replayColumns + `
		FROM millrace_replays
		WHERE namespace = ?
		ORDER BY id DESC
		LIMIT ?`,
	AdvanceReplay: `
		UPDATE millrace_replays
		SET reached = ?, sent = sent + ?, skipped = skipped + ?, moved_at = {now}
		WHERE id = ? AND state = 1 AND reached = ? AND sent = ?`,
	EndReplay: `
		UPDATE millrace_replays
		SET state = ?, finished_at = {now}
		WHERE id = ? AND state = 1`,
}

// States of a replay.
const (
	ReplayRunning   = 1
	ReplayDone      = 2
	ReplayCancelled = 3
)

const replayColumns = `id, name, source, spec, reached, last_id, sent, skipped, state, actor, reason, started_at,
			moved_at, finished_at`
