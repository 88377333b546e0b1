package inbox

import "github.com/millrace-go/millrace/internal/reserved"

// Metadata fields that the inbox reads.
const (
	// AggregateField and VersionField say which version of which aggregate a message carries. The
	// outbox sets them, package outbox names them too, and [VersionFromMetadata] reads them.
	AggregateField = reserved.Aggregate
	VersionField   = reserved.Version

	// ReplayField marks a replayed message: one that was sent before, and is sent again on purpose
	// with its id, key and other metadata. Its value names the replay, for logs and stories; any text
	// will do.
	//
	// The field belongs to the message: it is stored with it, and stays when the message is held,
	// tried again or parked. A message that a handler produces has the field only if the handler
	// copies it.
	ReplayField = reserved.Replay

	// ReplayAttemptField counts how often package replay has sent a message again: 1 the first time.
	ReplayAttemptField = reserved.ReplayAttempt
)
