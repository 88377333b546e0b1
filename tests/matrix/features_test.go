package matrix_test

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
)

// feature is something that a consumer may switch on: what it changes in the wiring, and what
// is expected then.
type feature struct {
	name    string
	setting string // features of one setting exclude each other
	use     func(s *service)
}

// features are in the order in which they are applied.
var features = []feature{
	{"OrderKey", "", func(s *service) {
		s.queue().OrderKey = func(msg *message.Message) (string, error) { return msg.Metadata.Get(customerField), nil }
		s.durable.Mode = pubsub.StoreFirst // it needs that, unless the other feature says otherwise
	}},
	{"StoreFirst", "mode", func(s *service) { s.queue().Mode = pubsub.StoreFirst }},
	{"StoreOnFailure", "mode", func(s *service) { s.queue().Mode = pubsub.StoreOnFailure }},

	{"gate that fails", "gate", func(s *service) {
		s.gate = &millrace.VersionGate{OnGap: inbox.GapFail, GapFor: time.Minute}
		s.inFlight = many
	}},
	{"gate that holds", "gate", func(s *service) {
		s.gate = &millrace.VersionGate{OnGap: inbox.GapHold}
		s.queue()
	}},
	{"gate that holds, with many in flight", "gate", func(s *service) {
		s.gate = &millrace.VersionGate{OnGap: inbox.GapHold}
		s.queue()
		s.inFlight = many
	}},
	{"gate for the latest", "gate", func(s *service) {
		s.gate = &millrace.VersionGate{OnGap: inbox.GapLatest}
		s.latest = true
	}},

	{"Journal", "", func(s *service) { s.inbox.Journal = true }},
	{"RecordFailures", "", func(s *service) { s.inbox.RecordFailures = true }},
	{"Before", "", func(s *service) { s.inbox.Before = func(msg *message.Message) error { return s.readable(msg) } }},
	{"RequireTx", "", func(s *service) { s.inbox.RequireTx = true }},
	{"LogDropped", "", func(s *service) { s.config.LogDropped = true }},
	{"Namespace", "", func(s *service) { s.config.Namespace = "shop" }},

	{"AESGCM", "", func(s *service) { s.config.Payloads = sealed }},
	{"blobs in a table", "blobs", func(s *service) { s.config.BlobsAbove = 16 }},
	{"blobs in files", "blobs", func(s *service) { s.config.BlobsAbove, s.blobFiles = 16, true }},

	{"outbox", "products", func(s *service) { s.outbox, s.produces = true, true }},
	{"returned messages", "products", func(s *service) { s.produces = true }},
	{"OnPark with an outbox", "", func(s *service) { s.queue(); s.onPark = true }},

	{"replays suppressed", "replay", func(s *service) {
		s.inbox.OnReplay = inbox.ReplaySuppress
		s.letters = append(s.letters, letter{"r1", "rex", "r", 1, suppressed})
	}},
	{"replays refused", "replay", func(s *service) {
		s.inbox.OnReplay = inbox.ReplayRefuse
		s.letters = append(s.letters, letter{"r1", "rex", "r", 1, refused})
	}},
	{"epoch raised", "epoch", func(s *service) { s.epochs = true }},
	{"former key", "epoch", func(s *service) { s.epochs, s.former = true, true }},
	{"key that can be missing", "", func(s *service) {
		s.inbox.Key = inbox.ByMetadata(orderField)
		s.queue().Key = s.inbox.Key
		s.letters = append(s.letters, letter{"k1", "kim", "k", 1, keyless})
	}},

	{"unpacking outside", "packing", func(s *service) { s.packed = true; s.outside = append(s.outside, unpack) }},
	{"unpacking inside", "packing", func(s *service) { s.packed = true; s.between = append(s.between, unpack) }},
	{"Retry outside", "", func(s *service) {
		retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Logger: watermill.NopLogger{}}
		s.outside = append([]message.HandlerMiddleware{retry.Middleware}, s.outside...)
	}},
	{"Deduplicate beside", "", func(s *service) { s.audited = true }},

	{"OnBegin", "", func(s *service) {
		s.inbox.OnBegin = func(ctx context.Context, tx *sqlx.Tx, _ *message.Message) error {
			_, err := tx.ExecContext(ctx, `DELETE FROM audited WHERE uuid = 'of nobody'`)
			return err
		}
	}},
	{"NotBefore", "", func(s *service) { s.queue(); s.early = 100 * time.Millisecond }},
	{"Fingerprint", "", func(s *service) {
		s.inbox.Fingerprint = func(msg *message.Message) ([]byte, error) {
			return append([]byte(msg.UUID), msg.Payload...), nil
		}
		if s.durable != nil {
			s.durable.Fingerprint = s.inbox.Fingerprint
		}
	}},
	{"payloads that collide", "", func(s *service) { s.inbox.OnCollision, s.forged = inbox.CollisionPark, true }},
	{"a handler that panics", "", func(s *service) { s.panics = true }},
	{"a handler that edits its message", "", func(s *service) { s.edits = true }},
}

// many is more than are in the stream: a source that delivers everything at once.
const many = 100

// queue has the service stand behind a durable queue.
func (s *service) queue() *pubsub.Durable {
	if s.durable == nil {
		s.durable = &pubsub.Durable{
			Consumer: consumer, Poll: 20 * time.Millisecond, Lease: lease,
			MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, MaxAttempts: 100,
		}
	}
	return s.durable
}

const lease = 2 * time.Second

// sealed encrypts what is stored.
var sealed = func() payload.Codec {
	codec, err := payload.NewAESGCM(payload.KeyRing{Current: "one", Keys: map[string][]byte{"one": []byte("sixteen bytes ok")}})
	if err != nil {
		panic(err)
	}
	return codec
}()
