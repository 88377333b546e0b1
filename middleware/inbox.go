package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/leaving"
	"github.com/millrace-go/millrace/internal/original"
)

// Inbox makes what a handler writes through inbox.Tx happen exactly once, however often
// its message is delivered. Only Store is required:
//
//	millrace.Inbox{Store: store}.AddTo(router)
//
// For each delivery it begins a transaction, claims the message in it, runs the handler with the
// transaction in the message's context, and commits. A handler that fails or panics leaves nothing
// behind. Inbox acks a copy of a handled message without running the handler; a copy of one that
// is being handled waits.
//
// Inbox hashes and stores a message as it came, before any middleware could change it, if the
// Store's plugin is in the router or pubsub.Durable around the subscriber. On every exit the
// message has the UUID, payload, metadata and context it had on entry.
//
// Inbox keeps the messages that the handler returns in the same transaction: in Outbox, or as the
// outcome of the message, which the router then publishes. If the process dies before that, the
// redelivery publishes the same messages, with the same UUIDs.
type Inbox struct {
	// Store keeps what the consumers have handled. Required.
	Store *inbox.Store

	// Consumer names the consumer, whose claims are its own. Two handlers with one name would take
	// each other's messages for duplicates, so Inbox refuses that. Defaults to the router's handler
	// name; set it if handlers may be renamed.
	Consumer string

	// Key says which deliveries are the same message. Defaults to the message's UUID.
	Key inbox.Key

	// Outbox, if set, gets the messages that the handler returns, in the transaction: any publisher
	// that finds the transaction in the message's context. The router then publishes nothing.
	Outbox message.Publisher

	// Timeout bounds the transaction, and so the handler. It does not include the waits for other
	// processes, for TwinWait at the claim and again at a VersionGate. Defaults to 25 seconds, less
	// than the 30 after which watermill-sql gives a message to someone else.
	Timeout time.Duration

	// Skip lets a message through to the handler as if the middleware were not there.
	Skip func(msg *message.Message) bool

	// Options are the other settings: how long a message is remembered, what happens to copies and
	// replays, what runs before the handler, what is kept.
	inbox.Options
}

// AddTo wires router: it adds [Inbox.Middleware] for all handlers, and [Inbox.Plugin], which stops
// Router.Run with an error if it finds a wrong setting. AddTo may be called for several routers
// and, if each has its Skip, for several Inboxes on one router: the Store does its background work
// once. For one handler alone, give that handler Inbox.Middleware, and the router the plugin. If
// router is nil, AddTo only logs an error.
func (i Inbox) AddTo(router *message.Router) {
	if router == nil {
		if i.Store != nil {
			i.Store.Logger().Error("middleware.Inbox does not work", errNoRouter, nil)
		}
		return
	}
	router.AddMiddleware(i.Middleware)
	router.AddPlugin(i.plugin)
}

var errNoRouter = errors.New("AddTo got no router: pass it the one that has the handlers")

// plugin is the plugin that AddTo adds: there every handler has the Inbox.
func (i Inbox) plugin(r *message.Router) error {
	if n := len(r.Handlers()); n > 1 && i.Consumer != "" && i.Skip == nil {
		return fmt.Errorf("middleware.Inbox: %d handlers of one router would share the consumer %q, and take each other's messages "+
			"for duplicates: leave Consumer out, or give each handler its own Inbox", n, i.Consumer)
	}
	return i.Plugin()(r)
}

// Middleware wraps h. It logs a wrong setting once and then returns it as the error for every
// message, so that nothing is handled without the guarantee; [Inbox.Plugin] finds it at start. On a
// router without a Store's plugin, the error for every message is inbox.ErrNoPlugin.
func (i Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc {
	if err := i.Validate(); err != nil {
		if i.Store != nil {
			i.Store.Logger().Error("middleware.Inbox does not work", err, nil)
		}
		return inbox.Internals{}.Refuse(err)
	}
	return i.each("middleware.Inbox", h, func(config inbox.ConsumerConfig) (message.HandlerFunc, error) {
		return i.Store.Handler(config, h)
	})
}

// each handles each message by the handler of its consumer, which of makes, or by h if Skip says so.
func (i Inbox) each(
	who string, h message.HandlerFunc, of func(inbox.ConsumerConfig) (message.HandlerFunc, error),
) message.HandlerFunc {
	handler := handlers(who, func(name string) (message.HandlerFunc, error) { return of(i.config(name)) })
	names := &naming{}
	return leaving.Nack(func(msg *message.Message) ([]*message.Message, error) {
		if i.Skip != nil && i.Skip(msg) {
			return skip(msg, h)
		}
		return handler(names.of(msg.Context(), i.Consumer))(msg)
	})
}

// Plugin is [inbox.Store.Plugin] and more: when the router starts, a wrong setting, or a consumer
// that had another key before, stops Router.Run with an error instead of failing every message.
// Without Consumer it checks each handler of the router, so use it for an Inbox that all of them
// share; with Skip it checks none, since Skip may leave handlers out. [Inbox.AddTo] adds it.
func (i Inbox) Plugin() message.RouterPlugin {
	return func(r *message.Router) error {
		if err := i.Validate(); err != nil {
			return err
		}
		if err := i.verifyHandlers(r); err != nil {
			return err
		}
		return i.Store.Plugin()(r)
	}
}

func (i Inbox) verifyHandlers(r *message.Router) error {
	if i.Skip != nil && i.Consumer == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startWait)
	defer cancel()
	for handler := range r.Handlers() {
		if err := i.Verify(ctx, handler); err != nil {
			return err
		}
	}
	return nil
}

// Verify returns what would make every message of a handler fail: a wrong setting, or a consumer
// that had another key before. It records a Retention that is longer than before, so that no claim is
// deleted by the shorter one. [Inbox.Plugin] calls it for each handler.
func (i Inbox) Verify(ctx context.Context, handler string) error {
	if err := i.Validate(); err != nil {
		return err
	}
	return i.Store.Verify(ctx, i.config(handler))
}

// startWait bounds the queries with which the plugin checks consumers when a router starts.
const startWait = 30 * time.Second

// Validate returns every wrong setting at once.
func (i Inbox) Validate() error {
	var problems []error
	if i.Store == nil {
		problems = append(problems, errors.New("a Store is required"))
	}
	problems = append(problems, i.config("").Validate())
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("middleware.Inbox: invalid settings: %w", err)
	}
	return nil
}

// skip runs h as if the middleware, and a VersionGate in it, were not there.
func skip(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	ctx := msg.Context()
	defer msg.SetContext(ctx)
	msg.SetContext(context.WithValue(ctx, skipKey{}, letThrough{ctx.Value(original.Key{})}))
	return h(msg)
}

type skipKey struct{}

// letThrough is the original of a message that Skip let through, which is nil on a router without a Store's plugin.
type letThrough struct{ came any }

// skipped reports whether Skip let the message of ctx through, and not one whose handler published it with its context.
func skipped(ctx context.Context) bool {
	of, is := ctx.Value(skipKey{}).(letThrough)
	return is && of.came == ctx.Value(original.Key{})
}

func (i Inbox) config(handler string) inbox.ConsumerConfig {
	name := i.Consumer
	if name == "" {
		name = handler
	}
	return inbox.ConsumerConfig{
		Name: name, Handler: handler, Key: i.Key, Outbox: i.Outbox, Timeout: i.Timeout, Options: i.Options,
	}
}
