package dialect

// Journal holds the statements for completed messages that are kept whole.
type Journal struct {
	InsertJournal string
	DeleteJournal string

	// Both take the ids between which to look, the consumer, twice a topic, where NULL means any,
	// and from and below which time of processing.
	SelectJournal string
	CountJournal  string

	StoryJournal string

	// CountClaims tells how many of the ids a consumer has claimed, and completed.
	CountClaims string
}

// Replays holds the statements of package replay.
type Replays struct {
	InsertReplay string
	SelectReplay string
	ListReplays  string

	// AdvanceReplay ends with what its caller believes to be there: of two that send one replay,
	// one finds that it is not.
	AdvanceReplay string
	EndReplay     string
}

// States of a replay.
const (
	ReplayRunning   = 1
	ReplayDone      = 2
	ReplayCancelled = 3
)

const replayColumns = `id, name, source, spec, reached, last_id, sent, skipped, state, actor, reason, started_at,
			moved_at, finished_at`
