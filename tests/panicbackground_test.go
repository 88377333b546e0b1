package tests_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// ending panics where the background work tells of something.
func ending(kind inbox.Kind) []inbox.Observer {
	return []inbox.Observer{inbox.On(func(context.Context, inbox.Event) { panic("an observer") }, kind)}
}

// backgrounds are the functions of the service that the background work calls.
var backgrounds = map[string]func(*inbox.Config){
	"Archive": func(c *inbox.Config) {
		c.Archive = func(_ context.Context, all []inbox.ExpiredClaim) error {
			if strings.HasPrefix(all[0].Consumer, bad) {
				panic("an archive")
			}
			return nil
		}
	},
	"Archive returns a nil pointer": func(c *inbox.Config) {
		c.Archive = func(_ context.Context, all []inbox.ExpiredClaim) error {
			if strings.HasPrefix(all[0].Consumer, bad) {
				return (*inbox.DeliveryError)(nil)
			}
			return nil
		}
	},
	"Redispatch": func(c *inbox.Config) { c.Redispatch = exploding{&rig.Publisher{}} },
	"purged":     func(c *inbox.Config) { c.Observers = ending(inbox.KindPurged) },
	"claims":     func(c *inbox.Config) { c.Observers = ending(inbox.KindClaims) },
	"settled":    func(c *inbox.Config) { c.Observers = ending(inbox.KindSettled) },
	"List":       func(c *inbox.Config) { c.Blobs = fragile{method: "List"} },
	"Logger":     func(c *inbox.Config) { c.Logger = hoarse{} },
}

// exploding panics with what is bad.
type exploding struct{ *rig.Publisher }

func (e exploding) Publish(topic string, msgs ...*message.Message) error {
	if string(msgs[0].Payload) == bad {
		panic("a publisher")
	}
	return e.Publisher.Publish(topic, msgs...)
}

// fragile is a place for blobs that has none.
type fragile struct{ method string }

func (fragile) Put(context.Context, string, []byte) error   { return nil }
func (fragile) Get(context.Context, string) ([]byte, error) { return nil, errBoom }
func (fragile) Delete(context.Context, string) error        { return nil }
func (f fragile) List(context.Context, string, string, int) ([]string, error) {
	if f.method == "List" {
		panic("a place for blobs")
	}
	return nil, nil
}

var panicBackgroundBodies = []testdb.Body{
	{Name: "a function of the service that panics in the background", Why: "the rest of the work is done, and no connection is held", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for name, set := range backgrounds {
			b.goesOn(name, set)
		}
	}},
	{Name: "Progress that panics", Why: "what it was told of is done, and another call does the rest", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		pool := db.Open(t)
		pool.SetMaxOpenConns(1)
		store := b.newStore(pool.DB, inbox.Config{})
		h := b.inbox(effect, on(store), func(i *millrace.Inbox) {
			i.Key = inbox.ByFunc("none", func(*message.Message) (string, error) { return "", errBoom })
		})
		for range 3 {
			must(t, h, newMessage("x")) // it is kept for an operator
		}
		by := admin.Operator{Name: "ada", Reason: "a test"}
		pace := admin.Pace{PerSecond: 1, Progress: func(int) { panic("progress") }}
		assert.PanicsWithValue(t, "progress", func() {
			_, _ = admin.New(store).DiscardAll(t.Context(), admin.Filter{}, by, pace)
		})
		assert.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond)
		before := b.count(`SELECT COUNT(*) FROM millrace_messages`)
		pace.Progress = nil
		pace.PerSecond = 0
		done, err := admin.New(store).DiscardAll(t.Context(), admin.Filter{}, by, pace)
		require.NoError(t, err)
		assert.Equal(t, 2, before, "the first is done")
		assert.Equal(t, before, done)
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_messages`))
	}},
	{Name: "a step that panics", Why: "it is in doubt, and nothing else is held", Run: stepThatPanics},
	{Name: "a result whose codec panics", Why: "the step is done all the same", Run: stepUnsealed},
}

// goesOn has the background work of a service meet what is bad, and looks whether it does the rest.
func (b *bed) goesOn(name string, set func(*inbox.Config)) {
	b.Helper()
	pool := b.db.Open(b)
	pool.SetMaxOpenConns(3)
	defer pool.Close() //nolint:errcheck // the test is over
	published := &rig.Publisher{}
	config := inbox.Config{PurgeInterval: 20 * time.Millisecond, RedispatchAfter: time.Nanosecond, WithoutPlugin: true}
	set(&config)
	if e, ok := config.Redispatch.(exploding); ok {
		published = e.Publisher
	} else {
		config.Redispatch = published
	}
	var purged atomic.Bool
	config.Observers = append(config.Observers, inbox.On(func(context.Context, inbox.Event) { purged.Store(true) }, inbox.KindPurged))
	store := rig.NewStore(b, pool.DB, config)
	// what is to be purged of two consumers, of which the first is bad, by name and by age
	other := "good, " + name
	for _, consumer := range []string{bad + ", " + name, other} {
		h := millrace.Inbox{Store: store, Consumer: consumer, Options: inbox.Options{Retention: inbox.MinRetention}}.Middleware(effect)
		msg := newMessage("x")
		must(b, h, msg)
	}
	b.exec(`UPDATE millrace_claims SET processed_at = 1`)
	claims := func() int {
		return b.count(`SELECT COUNT(*) FROM millrace_claims c JOIN millrace_consumers n ON n.id = c.consumer WHERE n.name = ?`, []byte(other))
	}
	// what is to be published of two handlers, of which the first's is bad
	router := rig.NewRouter(b)
	router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	down := &rig.Publisher{}
	down.FailWith(errBoom)
	feeds := map[string]*rig.Feed{}
	for payload, to := range map[string]*rig.Publisher{bad: down, "good": down, "acked": {}} {
		feeds[payload] = rig.NewFeed()
		router.AddHandler(name+", "+payload, "orders", feeds[payload], "invoices", to, func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{newMessage(payload)}, apply(msg.Context(), msg.UUID)
		})
	}
	rig.Run(b, router)
	for _, payload := range []string{bad, "good", "acked", "acked"} {
		msg := newMessage("x")
		feeds[payload].Send(b, msg)
		assert.Equal(b, payload == "acked", rig.Answer(b, msg), name)
	}
	b.exec(`UPDATE millrace_outcomes SET created_at = created_at - 1000
		WHERE consumer IN (SELECT id FROM millrace_consumers WHERE name = ?)`, []byte(name+", "+bad)) // it is the first, whatever the clock says
	stop := rig.Work(b, store)
	sent := func() bool {
		return slices.ContainsFunc(published.Messages(), func(msg *message.Message) bool { return string(msg.Payload) == "good" })
	}
	assert.Eventually(b, func() bool { return claims() == 0 }, rig.Patience, time.Millisecond, "%s: the claims of the other consumer are purged", name)
	assert.Eventually(b, purged.Load, rig.Patience, time.Millisecond, "%s: a purge comes to its end", name)
	assert.Eventually(b, sent, rig.Patience, time.Millisecond, "%s: what the other handler produced is sent", name)
	counted := func() bool { return store.Panics() > 0 || strings.Contains(name, "nil pointer") }
	assert.Eventually(b, counted, rig.Patience, time.Millisecond, "%s: it is counted", name)
	stop()
	require.NoError(b, router.Close(), name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), rig.Patience)
	defer cancel()
	require.NoError(b, store.Close(ctx), name)
	assert.Eventually(b, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
	b.exec(`DELETE FROM millrace_outcomes`)
}

// stepThatPanics has Do and Verify panic.
func stepThatPanics(t *testing.T, db *testdb.DB) {
	b := newBed(t, db)
	pool := db.Open(t)
	pool.SetMaxOpenConns(1)
	store := b.newStore(pool.DB, inbox.Config{})
	p := provider{panic: true}
	verifies := false
	step := inbox.Step{
		Name: "mail", Do: p.call, Lease: time.Minute,
		Verify: func(context.Context, string) (bool, []byte, error) {
			if verifies {
				return true, []byte("found"), nil
			}
			panic("verify")
		},
	}
	h, results := stepping(step, fine)
	leased := b.leased(h, onStore(store))
	msg := newMessage("x")
	assert.PanicsWithValue(t, "the process dies", func() { _, _ = leased(again(msg)) })
	for range 3 { // at once: the step is not taken any more, nor the key
		assert.PanicsWithValue(t, "verify", func() { _, _ = leased(again(msg)) })
	}
	assert.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond)
	p.panic = false
	must(t, leased, newMessage("good"))
	verifies = true
	must(t, leased, again(msg))
	assert.Contains(t, *results, "found")
	assert.Len(t, p.ids, 2, "it is not done twice")
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	require.NoError(t, store.Close(ctx))
}

// stepUnsealed has the codec panic with the result of a step.
func stepUnsealed(t *testing.T, db *testdb.DB) {
	b := newBed(t, db)
	store := b.newStore(db.DB, inbox.Config{Payloads: jamming{}})
	done := 0
	h, _ := stepping(inbox.Step{Name: "mail", Do: func(context.Context, string) ([]byte, error) {
		done++
		return []byte(bad), nil
	}}, fine)
	msg := newMessage("x")
	for epoch := range 3 {
		err := rig.Failure(t, b.leased(h, onStore(store), func(d *millrace.Deduplicate) { d.Epoch = epoch }), again(msg), "it is done, but its result was not kept")
		assert.True(t, inbox.IsTerminal(err))
	}
	assert.Equal(t, 1, done)
}
