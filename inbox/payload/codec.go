package payload

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Info says which message a payload belongs to. Seal and Open get the same Info. None of it is
// sealed.
type Info struct {
	Consumer string
	Topic    string // of the message; if a handler produced it, the topic it goes to; empty for a result
	UUID     string
	Metadata message.Metadata
}

// Codec changes payloads on their way into the tables and back, for instance with a key per person,
// so that deleting a key erases what is stored of that person. [AESGCM] is one. It must be safe for
// concurrent use. If it panics in a delivery that no queue stores, nothing is stored and the panic
// reaches the router; in a queue, the panic counts as an error.
type Codec interface {
	// Seal returns what to store. If the message is stored in a transaction, inbox.Tx(ctx) returns
	// that transaction, so Seal can make a key in it; it must be quick then. If Seal returns
	// inbox.ErrErased, an open message is stored without its payload, and a result of inbox.SetResult
	// without its content, as if it had been erased later. After any other error the message is not stored.
	Seal(ctx context.Context, info Info, payload []byte) ([]byte, error)

	// Open returns the payload that Seal was given. inbox.ErrErased, or an error marked with
	// inbox.Terminal, says that nobody can ever open it again. After any other error the message is
	// delivered later. That counts as an attempt only if this process has opened another
	// payload since it last failed to open this one; it never counts if the error wraps inbox.ErrUnavailable or
	// is a [net.Error]. Return one of these in an outage in which some payloads can still be
	// opened, because their keys are in a cache for instance.
	Open(ctx context.Context, info Info, sealed []byte) ([]byte, error)
}
