package inbox

import "github.com/millrace-go/millrace/internal/reserved"

// Metadata fields that the inbox reads.
const (
	// AggregateField and VersionField say which version of which aggregate a message brings. The
	// outbox sets them, package outbox names them too, and [VersionFromMetadata] reads them.
	AggregateField = reserved.Aggregate
	VersionField   = reserved.Version

	// ReplayField marks a replayed message: one that was sent before, and is sent again on purpose
	// with its id, key and other metadata. Its value names the replay, for logs and stories; any text
	// will do.
	//
	// The field is the message's own: it is stored with it, and stays when the message is held,
	// tried again or parked. What a handler makes of a replayed message is another message, and
	// bears the field only if the handler copies it.
	ReplayField = reserved.Replay

	// ReplayAttemptField is where package replay counts how often it has sent a message again: 1 the
	// first time.
	ReplayAttemptField = reserved.ReplayAttempt
)
