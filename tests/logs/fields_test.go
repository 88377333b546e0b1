// Package logs_test looks at what is said of what Millrace decides.
package logs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// secret is the payload of every message here. No line and no error may tell it.
const secret = `{"secret": "s3cr3t"}`

// who names a message and whose it is.
var who = []string{"consumer", "epoch", "message_id", "message_uuid", "topic"}

// saidOf are lines that the decisions below bring about, and the fields they must have.
var saidOf = map[string][]string{
	"inbox: message handled":                                          who,
	"inbox: duplicate, handler not run":                               append([]string{"reason"}, who...),
	"inbox: handler failed, its work was rolled back":                 append([]string{"reason", "error"}, who...),
	"inbox: collision of two messages":                                append([]string{"reason"}, who...),
	"inbox: message parked for an operator":                           append([]string{"reason"}, who...),
	"inbox: stale version, handler not run":                           append([]string{"reason"}, who...),
	"inbox: a message came before its predecessor":                    append([]string{"reason"}, who...),
	"inbox: message held for its predecessor":                         append([]string{"reason"}, who...),
	"inbox: messages that waited for this one were released":          append([]string{"count"}, who...),
	"inbox: a stored message is tried again later":                    append([]string{"reason", "error", "attempt", "again_in"}, who...),
	"inbox: messages stored":                                          {"consumer", "epoch", "count"},
	"inbox: an operator decided":                                      {"operator", "action", "reason", "consumer", "epoch"},
	"inbox: outcomes settled":                                         {"count"},
	"inbox: purged":                                                   {"count"},
	"inbox: possible double effect":                                   who,
	"inbox: handler failed, its lease was released":                   append([]string{"reason", "error"}, who...),
	"inbox: OnPark failed; the message is parked without it":          {"consumer", "epoch", "message_uuid", "reason"},
	"outbox: message parked for an operator":                          {"topic", "message_uuid", "attempt"},
	"outbox: a message could not be sent; retrying later":             {"topic", "message_uuid", "attempt", "reason", "error"},
	"outbox: nothing gets through to the broker; waiting":             {"topic", "message_uuid", "attempt"},
	"outbox: messages get through to the broker again":                {"after"},
	"outbox: the relay's share changed":                               {"shards", "of"},
	"inbox: a transaction was ended that is not the handler's to end": append([]string{"reason"}, who...),
	"inbox: the handler succeeded without taking its transaction: use inbox.Tx, or exclude it with Skip; said once per consumer": who,
	"inbox: a message was handled and then neither acked nor nacked, so its key is free again":                                   who,
	"inbox: a stored message failed and was acked all the same, so its failure was taken over, and nothing is kept of it; " +
		"said once per consumer": append([]string{"error"}, who...),
	"inbox: a stored message was acked, but came to the inbox without its context, so it is tried again; said once per consumer": who,
}

func TestLogLinesTellWhoAndWhy(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		l := newLogged(t, db)
		l.deliveries()
		l.collisions()
		l.versions()
		l.leases()
		l.queue()
		l.acked()
		l.operators()
		l.outcomes()
		l.relay()
		l.check()
	})
}

// logged is a service whose log and errors are kept.
type logged struct {
	*testing.T
	db     *testdb.DB
	events *rig.Events
	log    *watermill.CaptureLoggerAdapter
	store  *inbox.Store
	parked []admin.Message

	mu     sync.Mutex
	errors []error
}

func newLogged(t *testing.T, db *testdb.DB) *logged {
	t.Helper()
	l := &logged{T: t, db: db, events: &rig.Events{}, log: watermill.NewCaptureLogger()}
	l.store = rig.NewStore(t, db.DB, inbox.Config{
		WithoutPlugin: true,
		Logger:        l.log, Observers: []inbox.Observer{l.events}, AllowPayloadChange: true, PurgeInterval: time.Hour,
	})
	require.NoError(t, l.store.Migrate(t.Context()))
	db.Do(t, `CREATE TABLE effects (uuid VARCHAR(60) NOT NULL)`)
	return l
}

func effect(msg *message.Message) ([]*message.Message, error) {
	return nil, rig.Exec(msg.Context(), `INSERT INTO effects (uuid) VALUES (?)`, msg.UUID)
}

// again is another delivery of the same message.
func again(msg *message.Message) *message.Message { return msg.Copy() }

func (l *logged) exec(query string) {
	l.Helper()
	l.db.Do(l, query)
}

func (l *logged) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errors = append(l.errors, err)
	}
}

// deliver has a middleware handle msgs, one after the other, and notes their errors.
func (l *logged) deliver(h message.HandlerFunc, msgs ...*message.Message) {
	for _, msg := range msgs {
		_, err := l.via(h)(msg)
		l.note(err)
	}
}

// via has a router give each message its topic.
func (l *logged) via(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		router, broken := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(l, broken)
		feed, done := rig.NewFeed(), make(chan struct{})
		router.AddConsumerHandler("billing", "orders", feed, func(m *message.Message) error {
			defer close(done)
			produced, err = h(m)
			return nil
		})
		stop := l.run(router)
		feed.Send(l, msg)
		<-done
		stop()
		return produced, err
	}
}

// run runs a router until stop is called.
func (l *logged) run(router *message.Router) (stop func()) {
	l.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(l.Context())) }()
	<-router.Running()
	return func() {
		require.NoError(l, router.Close())
		require.NoError(l, <-stopped)
	}
}

func secretMessage() *message.Message { return message.NewMessage(watermill.NewUUID(), []byte(secret)) }

var errHandler = errors.New("the handler fails")

func fails(*message.Message) ([]*message.Message, error) { return nil, errHandler }

func (l *logged) inbox(consumer string, h message.HandlerFunc, change ...func(*millrace.Inbox)) message.HandlerFunc {
	i := millrace.Inbox{Store: l.store, Consumer: consumer}
	for _, c := range change {
		c(&i)
	}
	return i.Middleware(h)
}

func (l *logged) deliveries() {
	msg := secretMessage()
	l.deliver(l.inbox("deliveries", effect), msg, again(msg))
	l.deliver(l.inbox("failing", fails, func(i *millrace.Inbox) { i.RecordFailures = true }), secretMessage())
	l.deliver(l.inbox("forgetful", func(*message.Message) ([]*message.Message, error) { return nil, nil }), secretMessage())
	l.deliver(l.inbox("panicking", func(*message.Message) ([]*message.Message, error) { return nil, errHandler },
		func(i *millrace.Inbox) { i.Key = inbox.ByJSON("missing") }), secretMessage())
	l.deliver(l.inbox("ending", func(msg *message.Message) ([]*message.Message, error) {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return nil, err
		}
		return nil, tx.Commit()
	}), secretMessage())
}

func (l *logged) collisions() {
	msg := secretMessage()
	other := again(msg)
	other.Payload = []byte(secret + " ")
	l.deliver(l.inbox("collisions", effect), msg, other)
	third := again(msg)
	third.Payload = []byte(secret + "  ")
	l.deliver(l.inbox("collisions that fail", effect, func(i *millrace.Inbox) { i.OnCollision = inbox.CollisionFail }), again(msg), third)
	broken := secretMessage()
	broken.Payload = []byte("s3cr3t")
	l.deliver(l.inbox("keys", effect, func(i *millrace.Inbox) { i.Key = inbox.ByJSON("id") }), broken)
}

// versions brings the messages of an aggregate in the wrong order.
func (l *logged) versions() {
	sub, err := pubsub.Durable{Store: l.store, Consumer: "versions", Poll: 20 * time.Millisecond}.Decorate(rig.NewFeed())
	require.NoError(l, err)
	_, err = sub.Subscribe(l.Context(), "orders") // somebody delivers what is held
	require.NoError(l, err)
	gated := l.inbox("versions", millrace.VersionGate{}.Middleware(effect))
	version := func(n int) *message.Message {
		msg := secretMessage()
		msg.Metadata.Set(inbox.AggregateField, "account-1")
		msg.Metadata.Set(inbox.VersionField, strconv.Itoa(n))
		return msg
	}
	l.deliver(gated, version(1), version(3), version(2), version(1))
	l.deliver(l.inbox("bad versions", millrace.VersionGate{Version: inbox.VersionFromJSON("secret", "secret")}.Middleware(effect)),
		secretMessage())
}

// leases has a handler run whose key cannot be kept.
func (l *logged) leases() {
	d := millrace.Deduplicate{Claims: l.store.Leases(), Consumer: "leases", Lease: time.Minute}
	msg := secretMessage()
	l.deliver(d.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil }), msg, again(msg))
	l.deliver(d.Middleware(fails), secretMessage())
	l.deliver(d.Middleware(func(*message.Message) ([]*message.Message, error) {
		l.exec(`DELETE FROM millrace_leases`)
		return nil, nil
	}), secretMessage())
	d.Lease = 100 * time.Millisecond
	h := d.Middleware(func(*message.Message) ([]*message.Message, error) { return []*message.Message{secretMessage()}, nil })
	failed := l.events.Count("failed")
	l.deliver(func(msg *message.Message) ([]*message.Message, error) {
		copied := msg.Copy()
		copied.SetContext(msg.Context())
		return h(copied)
	}, secretMessage())
	require.Eventually(l, func() bool { return l.events.Count("failed") > failed }, rig.Patience, 5*time.Millisecond)
}

// queue has a message fail until it is parked.
func (l *logged) queue() {
	feed := rig.NewFeed()
	sub, err := pubsub.Durable{
		Store: l.store, Consumer: "queue", Mode: pubsub.StoreFirst, Poll: 20 * time.Millisecond, MaxAttempts: 2,
		MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
		OnPark: func(*message.Message, string) error { return errors.New("nobody listens") },
	}.Decorate(feed)
	require.NoError(l, err)
	router := rig.NewRouter(l)
	router.AddMiddleware(millrace.Inbox{Store: l.store}.Middleware)
	router.AddHandler("queue", "orders", sub, "invoices", &rig.Publisher{}, fails)
	stop := l.run(router)
	msg := secretMessage()
	collides := again(msg)
	collides.Payload = []byte(secret + " ")
	feed.Send(l, msg)
	require.True(l, rig.Answer(l, msg))
	feed.Send(l, collides)
	require.True(l, rig.Answer(l, collides))
	require.Eventually(l, func() bool {
		l.parked, err = admin.New(l.store).Find(l.Context(), admin.Filter{Consumer: "queue", Status: admin.Parked}, 0, 10)
		return err == nil && len(l.parked) == 2
	}, rig.Patience, 5*time.Millisecond)
	stop()
}

func (l *logged) operators() {
	by := admin.Operator{Name: "ann", Reason: "to see what is said"}
	ctx := l.Context()
	l.note(admin.New(l.store).ReplacePayload(ctx, l.parked[0].ID, []byte(secret+"   "), by))
	l.note(admin.New(l.store).Retry(ctx, l.parked[0].ID, by, &rig.Publisher{}))
	l.note(admin.New(l.store).Discard(ctx, l.parked[1].ID, by))
	l.note(admin.New(l.store).Discard(ctx, l.parked[1].ID, by)) // which is gone
	l.note(admin.New(l.store).Pause(ctx, "queue", 0, by))
	l.note(admin.New(l.store).Resume(ctx, "queue", 0, by))
	l.note(admin.New(l.store).SetVersion(ctx, inbox.Aggregate{Consumer: "versions", ID: "account-1"}, 9, by))
	l.note(admin.New(l.store).Forget(ctx, "versions", 0, by))
}

// outcomes has what a handler returned settled, and its claim purged.
func (l *logged) outcomes() {
	feed := rig.NewFeed()
	router := rig.NewRouter(l)
	router.AddMiddleware(millrace.Inbox{Store: l.store}.Middleware)
	router.AddHandler("outcomes", "orders", feed, "invoices", &rig.Publisher{},
		func(*message.Message) ([]*message.Message, error) { return []*message.Message{secretMessage()}, nil })
	stop := l.run(router)
	msg := secretMessage()
	feed.Send(l, msg)
	require.True(l, rig.Answer(l, msg))
	stop()
	l.exec(`UPDATE millrace_claims SET processed_at = 1 WHERE result <> 0`)
	ctx, cancel := context.WithCancel(l.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- l.store.Run(ctx) }()
	require.Eventually(l, func() bool { return l.events.Count("purged") > 0 && l.events.Count("settled") > 0 },
		time.Minute, 5*time.Millisecond)
	cancel()
	require.NoError(l, <-ran)
}

// relay has a broker be out, and then refuse a message until it is parked.
func (l *logged) relay() {
	out := rig.NewOutbox(l, l.db.DB, outbox.Config{Standalone: true})
	broker := &moody{}
	relay, err := outbox.NewRelay(l.db.DB, broker, outbox.RelayConfig{
		Logger: l.log, MaxAttempts: 2, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond, Poll: 10 * time.Millisecond,
	})
	require.NoError(l, err)
	bad := secretMessage()
	bad.Metadata.Set("bad", "yes")
	require.NoError(l, out.Publish("invoices", secretMessage()))
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.Context()))
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- relay.Run(ctx) }()
	require.Eventually(l, func() bool { return broker.sent() == 1 }, rig.Patience, 5*time.Millisecond)
	require.NoError(l, out.Publish("invoices", bad))
	require.Eventually(l, func() bool {
		parked, err := out.Parked(l.Context(), 0, 1)
		return err == nil && len(parked) == 1
	}, rig.Patience, 5*time.Millisecond)
	cancel()
	l.note(<-ran)
}

// moody is a broker that is out at first, and refuses what is bad.
type moody struct {
	rig.Publisher
	mu    sync.Mutex
	calls int
}

func (m *moody) Publish(topic string, msgs ...*message.Message) error {
	m.mu.Lock()
	m.calls++
	first := m.calls == 1
	m.mu.Unlock()
	if first {
		return errors.New("the broker is out")
	}
	for _, msg := range msgs {
		if msg.Metadata.Get("bad") != "" {
			return outbox.Permanent(fmt.Errorf("message %q is refused", msg.UUID))
		}
	}
	return m.Publisher.Publish(topic, msgs...)
}

func (m *moody) sent() int { return len(m.Messages()) }

// check looks at all that was said.
func (l *logged) check() {
	l.Helper()
	said := map[string][]watermill.CapturedMessage{}
	for _, lines := range l.log.Captured() {
		for _, line := range lines {
			said[line.Msg] = append(said[line.Msg], line)
			assert.NotContains(l, fmt.Sprint(line.Msg, line.Err, line.Fields), "s3cr3t", line.Msg)
			assert.NotContains(l, fmt.Sprint(line.Fields), secret, line.Msg)
		}
	}
	for text, fields := range saidOf {
		if !assert.NotEmpty(l, said[text], "nobody said %q, but: %s", text, strings.Join(slices.Sorted(maps.Keys(said)), "; ")) {
			continue
		}
		for _, line := range said[text] {
			for _, name := range fields {
				assert.Contains(l, line.Fields, name, "%q", text)
			}
		}
	}
	require.NotEmpty(l, l.errors)
	for _, err := range l.errors {
		assert.NotContains(l, err.Error(), "s3cr3t")
	}
}
