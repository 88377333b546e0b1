package shadow

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// Watch watches the deliveries to the handlers of a router. It is safe for concurrent use. One
// Watch serves all handlers of a process, and counts each separately.
type Watch struct {
	config    Config
	began     time.Time
	seed      maphash.Seed
	consumers sync.Map // *consumer by name
	panics    atomic.Int64
}

// New returns a Watch. Its error names every wrong setting at once.
func New(config Config) (*Watch, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &Watch{config: config, began: time.Now(), seed: maphash.MakeSeed()}, nil
}

// Middleware watches the deliveries to h without changing them. Put it in the place of
// middleware.Inbox. It recovers from a panic in a function of the Config, in an Observer or in
// the Logger, counts it, and logs the first one.
func (w *Watch) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		d := w.arrive(msg)
		returned := false
		defer func() { w.leave(d, returned && err == nil) }() // does not recover: h's panic goes on with its stack
		produced, err = h(msg)
		returned = true
		return produced, err
	}
}

// arrive counts a delivery before the handler sees it.
func (w *Watch) arrive(msg *message.Message) (d *delivery) {
	d = &delivery{}
	defer w.contain()
	ctx := msg.Context()
	c := w.consumer(cmp.Or(w.config.Consumer, message.HandlerNameFromCtx(ctx), inbox.Internals{}.StoredFor(ctx), unnamed))
	// Functions of the Config get a message of their own. If one acks it or sets its context or
	// metadata, that changes nothing for the handler.
	own := &message.Message{UUID: msg.UUID, Metadata: maps.Clone(msg.Metadata), Payload: msg.Payload}
	own.SetContext(ctx)
	w.read(d, c, own)
	c.arrive(d)
	for _, o := range w.config.Observers {
		w.tell(ctx, d, o)
	}
	return d
}

// tell tells o of a delivery, even if another observer panicked.
func (w *Watch) tell(ctx context.Context, d *delivery, o Observer) {
	defer w.contain()
	d.tell(func(by, found string) { o.ObserveShadow(ctx, d.consumer.name, by, found) })
}

// unnamed is the consumer of handlers that are called without a router and so have no name.
const unnamed = "unnamed"

// leave counts the result of the handler, and logs the rates when it is time.
func (w *Watch) leave(d *delivery, succeeded bool) {
	defer w.contain()
	if d.consumer == nil {
		return
	}
	if d.consumer.leave(d, succeeded, w.config.LogEvery) {
		rates := d.consumer.report()
		w.config.Logger.Info("shadow: rates of the deliveries", rates.fields())
	}
}

// read finds the keys and the versions of msg.
func (w *Watch) read(d *delivery, c *consumer, msg *message.Message) {
	d.payload = maphash.Bytes(w.seed, msg.Payload)
	d.keys = make([]keyed, len(c.keys))
	for i, k := range c.keys {
		w.readKey(&d.keys[i], k, d.payload, msg)
	}
	for i, v := range c.versions {
		w.readVersions(d, i, v, msg)
	}
}

func (w *Watch) readKey(into *keyed, tally *keyTally, payload uint64, msg *message.Message) {
	defer w.contain()
	if tally.isPayload { // whose hash is known
		*into = keyed{hash: payload, has: true}
		return
	}
	if value, err := tally.key.Of(msg); err == nil {
		*into = keyed{hash: maphash.String(w.seed, value), has: true}
	}
}

func (w *Watch) readVersions(d *delivery, of int, tally *versionTally, msg *message.Message) {
	found := foundInvalid // also if the function panics
	defer func() {
		if found != "" {
			d.versions = append(d.versions, versioned{tally: of, found: found})
		}
	}()
	defer w.contain()
	versions, err := tally.of(msg)
	if err == nil {
		err = usable(versions)
	}
	if found = whyNot(err); found != "" {
		return
	}
	for _, v := range versions {
		d.versions = append(d.versions, versioned{tally: of, hash: maphash.String(w.seed, v.Aggregate), number: v.Number})
	}
}

// consumer returns the figures of a consumer, new ones at its first delivery.
func (w *Watch) consumer(name string) *consumer {
	if c, ok := w.consumers.Load(name); ok {
		return c.(*consumer)
	}
	c, _ := w.consumers.LoadOrStore(name, newConsumer(name, w.began, &w.config))
	return c.(*consumer)
}

// contain recovers from a panic in what the Config gave. Defer it.
func (w *Watch) contain() {
	problem := recover()
	if problem == nil || w.panics.Add(1) > 1 {
		return
	}
	defer func() { _ = recover() }() // in case the logger panics
	w.config.Logger.Error("shadow: a function of its Config panicked",
		fmt.Errorf("panic: %v", problem), watermill.LogFields{})
}
