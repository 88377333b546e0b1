package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/batching"
)

// Batch makes a handler of several messages at once, whose effects happen exactly once for each of
// them. It is the handler itself, not a middleware:
//
//	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store}}
//	router.AddPlugin(batch.Plugin())
//	router.AddConsumerHandler("search", "orders", subscriber, batch.ConsumerHandler(index))
//
// The messages that a subscriber has in flight gather while the last batch runs; nothing waits for a
// timer. Batch claims all of them in one transaction, runs the function in it, and commits once. Then
// each message is acked by itself. A subscriber with one message in flight makes batches of one.
//
// The function gets the new messages in the order of their arrival. With its context, and with the
// context of each message, inbox.Tx returns the transaction. A message is handled by itself, as by
// Inbox, if it was delivered or failed before, is replayed or too old, or if another delivery has its
// key; the function then gets it alone, beside a batch or other messages that are alone. So what it
// keeps between calls needs a lock.
//
// If the function returns an error or panics, everything is rolled back, and the two halves of the
// batch are tried, until the messages that fail are alone and are treated as by Inbox. With [Failed]
// the function names them, and all others are tried at once. Each try repeats the function's effects
// outside of the transaction.
type Batch struct {
	// Inbox has the settings of the consumer. Its Store is required. Before and OnBegin are for
	// single messages: do in the function what they would do.
	Inbox Inbox

	// Max bounds the messages of a batch. Defaults to 100.
	Max int

	// MaxBytes bounds the payloads of a batch, unless its first message alone has more. Defaults to
	// 4 MiB.
	MaxBytes int

	// Gate, if set, applies the messages of each aggregate in the order of their versions. Versions
	// that follow one another go through in one batch, in order. With inbox.GapHold and pubsub.Durable,
	// messages with a gap are held in its transaction. With inbox.GapLatest the function gets only the
	// newest message of each aggregate, and the others are acked as stale. A message with several
	// aggregates or without a version is handled by itself, as is every message with a gap otherwise.
	// Gate's Store, Consumer and Epoch are unused.
	Gate *VersionGate

	// Linger is how long the first message of a batch waits for others, unless the batch is full or has
	// one that Gate held and released.
	// Defaults to 0: what has arrived is handled at once.
	Linger time.Duration
}

// BatchFunc handles several messages in one transaction. What it returns is stored in the Outbox.
type BatchFunc = func(ctx context.Context, msgs []*message.Message) ([]*message.Message, error)

// Failed returns err as the failure of msg, one of the messages of a [BatchFunc]. If the function
// returns it, or several in errors.Join, only these messages have failed. nil stays nil.
func Failed(msg *message.Message, err error) error {
	if err == nil {
		return nil
	}
	return &batching.Failed{Msg: msg, Err: err}
}

// ConsumerHandler returns the handler for router.AddConsumerHandler. It returns a wrong setting as the
// error for every message.
func (b Batch) ConsumerHandler(h func(ctx context.Context, msgs []*message.Message) error) message.NoPublishHandlerFunc {
	handler := b.handler(func(ctx context.Context, msgs []*message.Message) ([]*message.Message, error) {
		return nil, h(ctx, msgs)
	}, b.Validate())
	return func(msg *message.Message) error {
		outcome, err := handler(msg)
		if err == nil && len(outcome) > 0 {
			return fmt.Errorf("middleware.Batch: message %q was handled, and has %d messages to publish: "+
				"use AddHandler with Batch.Handler until they are published", msg.UUID, len(outcome))
		}
		return err
	}
}

// Handler returns the handler for router.AddHandler. Inbox.Outbox is required: what the function
// returns belongs to the whole batch, and is stored in its transaction. Handler returns a wrong setting
// as the error for every message.
func (b Batch) Handler(h BatchFunc) message.HandlerFunc {
	err := b.Validate()
	if err == nil && b.Inbox.Outbox == nil {
		err = errors.New("middleware.Batch: Handler needs Inbox.Outbox, since a batch returns its messages for " +
			"all that it handled: set it, or publish in the handler and use ConsumerHandler")
	}
	return b.handler(h, err)
}

func (b Batch) handler(h BatchFunc, err error) message.HandlerFunc {
	i := b.Inbox
	if err != nil {
		if i.Store != nil {
			i.Store.Logger().Error("middleware.Batch does not work", err, nil)
		}
		return inbox.Internals{}.Refuse(err)
	}
	return i.each("middleware.Batch", func(msg *message.Message) ([]*message.Message, error) {
		return h(msg.Context(), []*message.Message{msg})
	}, i.Store.Internals().BatchHandler(b.limits(), b.gate(), h))
}

// Plugin is [Inbox.Plugin]; it checks the settings of the batch too.
func (b Batch) Plugin() message.RouterPlugin {
	return func(r *message.Router) error {
		if err := b.Validate(); err != nil {
			return err
		}
		return b.Inbox.Plugin()(r)
	}
}

// mostInBatch keeps the arguments of a statement below the limit of every database: SQLite takes 32,766, and an
// aggregate has eight.
const mostInBatch = 4000

// Validate returns every wrong setting at once.
func (b Batch) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if b.Max < 0 || b.Max > mostInBatch {
		problem("Max %d is not between 0 and %d", b.Max, mostInBatch)
	}
	if b.MaxBytes < 0 {
		problem("MaxBytes %d is negative", b.MaxBytes)
	}
	if b.Linger < 0 {
		problem("Linger %v is negative", b.Linger)
	}
	if b.Inbox.Before != nil {
		problem("Inbox.Before is for handlers of one message: do its work in the function, or use Inbox without Batch")
	}
	if b.Inbox.OnBegin != nil {
		problem("Inbox.OnBegin is for handlers of one message: set up the transaction in the function")
	}
	if b.Gate != nil {
		problems = append(problems, b.Gate.Validate())
		if b.Gate.Store != nil {
			problem("Gate.Store is for a gate alone: leave it out")
		}
	}
	problems = append(problems, b.Inbox.Validate())
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("middleware.Batch: invalid settings: %w", err)
	}
	return nil
}

// gate returns the settings of Gate, nil if there is none.
func (b Batch) gate() *inbox.GateConfig {
	if b.Gate == nil {
		return nil
	}
	config := b.Gate.config()
	return &config
}

func (b Batch) limits() batching.Limits {
	if b.Max == 0 {
		b.Max = 100
	}
	if b.MaxBytes == 0 {
		b.MaxBytes = 4 << 20
	}
	return batching.Limits{Max: b.Max, MaxBytes: b.MaxBytes, Linger: b.Linger}
}
