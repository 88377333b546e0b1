package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/leaving"
)

// Deduplicate keeps a handler without a transaction from running twice for one message.
// Only Claims is required:
//
//	claims := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{}) // or store.Leases()
//	router.AddMiddleware(millrace.Deduplicate{Claims: claims}.Middleware)
//
// For each delivery it takes a lease on the message's key, runs the handler, and confirms the key
// if the handler succeeded. If the handler fails or panics, Deduplicate frees the key, so that the
// redelivery runs it again. It acks a copy of a handled message without running the handler; a
// copy of one that is being handled waits.
//
// Deduplicate extends the lease while the handler runs. If the process dies, its lease ends. A
// process that froze for longer than Lease, or was cut off from the store, may go on while another
// one handles the message: it can no longer confirm, which Deduplicate returns as
// inbox.ErrLeaseLost, logs, and reports as inbox.KindDoubleEffect. If a process dies between the
// handler's effect and the confirmation, nobody notices: give effects an idempotency key if a
// second one does harm. [Inbox] has no such gap for effects in its database.
//
// The router publishes the messages that the handler returns afterwards. Deduplicate confirms the
// key of such a message when it is acked, and frees it when it is nacked.
//
// On a router with the plugin of a Store, Deduplicate also frees the key, and returns
// inbox.ErrSwallowed, if a middleware inside hides that the handler failed, or returns before it.
type Deduplicate struct {
	// Claims keeps the keys: in memory, in the service's database, or in Redis. Required.
	Claims *inbox.Leases

	// Consumer names the consumer, whose keys are its own. Two handlers with one name would take
	// each other's messages for duplicates, so Deduplicate refuses that. Defaults to the router's
	// handler name; set it if handlers may be renamed.
	Consumer string

	// Epoch: raise it to handle everything again on purpose. Keys of an earlier epoch do not count.
	// Defaults to 0.
	Epoch int

	// Key says which deliveries are the same message; payloads are not compared. Defaults to
	// the message's UUID. With the Key of pubsub.Durable, a stored message counts as what Durable
	// stored: a collision that is retried is a message of its own, and inbox.ByPosition is known.
	Key inbox.Key

	// Lease is how long the key of a process that died stays taken. Deduplicate extends it three
	// times per Lease while the handler runs, so a handler may take longer. Defaults to 1 minute:
	// the store may be out of reach for 40 seconds before a lease is lost. At least 100ms.
	Lease time.Duration

	// Wait bounds how long a copy waits while another one is being handled; then it is nacked with
	// inbox.ErrInProgress. Defaults to 5 seconds: long enough for most handlers, short enough
	// that a copy is redelivered soon after a handler took longer.
	Wait time.Duration

	// Retention is how long a handled message is remembered: at least 100ms, or inbox.Forever.
	// Defaults to 7 days; set it to twice the longest time after which a broker may redeliver.
	Retention time.Duration

	// OnReplay says what happens to a replayed message, which has the metadata field
	// inbox.ReplayField. Defaults to inbox.ReplayAllow, which treats it like any delivery. With
	// inbox.ReplayRefuse, Deduplicate acks it without running the handler, reports
	// inbox.KindReplayed, and does not keep it: an archive or a journal still has it, but a
	// dead-letter queue does not, so send dead letters back without the field. The other rules
	// are for Inbox.
	OnReplay inbox.ReplayRule

	// Skip lets a message through to the handler as if the middleware were not there. A panic in it
	// takes no lease.
	Skip func(msg *message.Message) bool
}

// Middleware wraps h. It logs a wrong setting once and then returns it as the error for every
// message, so that nothing is handled without the guarantee; [Deduplicate.Validate] finds it at
// start.
func (d Deduplicate) Middleware(h message.HandlerFunc) message.HandlerFunc {
	if err := d.Validate(); err != nil {
		if d.Claims != nil {
			d.Claims.Logger().Error("middleware.Deduplicate does not work", err, nil)
		}
		return inbox.Internals{}.Refuse(err)
	}
	handler := handlers("middleware.Deduplicate", func(name string) (message.HandlerFunc, error) {
		return d.Claims.Handler(d.config(name), h)
	})
	names := &naming{}
	return leaving.Nack(func(msg *message.Message) ([]*message.Message, error) {
		if d.Skip != nil && d.Skip(msg) {
			return h(msg)
		}
		return handler(names.of(msg.Context(), d.Consumer))(msg)
	})
}

// Validate returns every wrong setting at once.
func (d Deduplicate) Validate() error {
	var problems []error
	if d.Claims == nil {
		problems = append(problems, errors.New("the field Claims is required"))
	} else if d.Claims.Store() == nil {
		problems = append(problems, errors.New("the field Claims has no store: give inbox.NewLeases one, such as a lease.Memory"))
	}
	problems = append(problems, d.config("").Validate())
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("middleware.Deduplicate: invalid settings: %w", err)
	}
	return nil
}

func (d Deduplicate) config(handler string) inbox.LeaseConfig {
	name := d.Consumer
	if name == "" {
		name = handler
	}
	return inbox.LeaseConfig{
		Name:      name,
		Handler:   handler,
		Epoch:     d.Epoch,
		Key:       d.Key,
		Lease:     d.Lease,
		Wait:      d.Wait,
		Retention: d.Retention,
		OnReplay:  d.OnReplay,
	}
}
