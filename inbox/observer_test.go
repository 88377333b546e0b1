package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

// An observer of two kinds of events. Events of the other kinds cost nothing.
func ExampleOn() {
	tell := func(_ context.Context, e inbox.Event) { fmt.Println(e.MessageID, "is", e.Kind) }
	_, store, done := exampleStore(inbox.Config{
		Observers: []inbox.Observer{inbox.On(tell, inbox.KindCompleted, inbox.KindDuplicate)},
	})
	defer done()
	handler := millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(
		func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for range 2 {
		_, err := handler(message.NewMessage("order-17", nil))
		check(err)
	}
	// Output:
	// order-17 is completed
	// order-17 is duplicate
}

// one is an observer of one kind, and counts how often it is asked for its wish.
type one struct {
	kind inbox.Kind
	told []inbox.Kind
	asks int
}

func (o *one) Observe(_ context.Context, e inbox.Event) { o.told = append(o.told, e.Kind) }
func (o *one) Wants(k inbox.Kind) bool                  { o.asks++; return k == o.kind }

func TestObserversHearWhatTheyWant(t *testing.T) {
	var all, some []inbox.Kind
	into := func(kinds *[]inbox.Kind) func(context.Context, inbox.Event) {
		return func(_ context.Context, e inbox.Event) { *kinds = append(*kinds, e.Kind) }
	}
	own := &one{kind: inbox.KindReceived}
	_, deliver := observed(t, inbox.On(into(&all)), nil, inbox.On(nil), own, inbox.On(into(&some), inbox.KindDuplicate, inbox.KindCompleted))
	asks := own.asks
	deliver()
	deliver()
	assert.Equal(t, []inbox.Kind{
		inbox.KindReceived, inbox.KindForgottenTx, inbox.KindCompleted, inbox.KindReceived, inbox.KindDuplicate,
	}, all)
	assert.Equal(t, []inbox.Kind{inbox.KindCompleted, inbox.KindDuplicate}, some)
	assert.Equal(t, []inbox.Kind{inbox.KindReceived, inbox.KindReceived}, own.told)
	assert.Equal(t, asks, own.asks, "it is asked when the Store is made")
}

// Describe is asked for each event that is made.
func TestAnEventThatNobodyWantsIsNotMade(t *testing.T) {
	nothing := func(context.Context, inbox.Event) {}
	for _, c := range []struct {
		observer inbox.Observer
		made     int
	}{
		{nil, 0},
		{inbox.On(nothing, inbox.KindPurged, inbox.KindParked), 0},
		{inbox.On(nothing, inbox.KindDuplicate), 1},
		{inbox.On(nothing), 2}, // it was received, and is a duplicate
	} {
		asked, deliver := observed(t, c.observer)
		deliver()
		*asked = 0
		deliver()
		assert.Equal(t, c.made, *asked, "%v", c.observer)
	}
}

// observed returns what delivers a message to a handler, and how often its consumer's Describe was called.
func observed(t *testing.T, observers ...inbox.Observer) (asked *int, deliver func()) {
	t.Helper()
	db, err := sqlx.Open("sqlite", "file:"+t.TempDir()+"/test.db?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	store, err := inbox.NewStore(db, inbox.Config{Observers: observers, WithoutPlugin: true})
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	asked = new(int)
	handler := millrace.Inbox{
		Store: store, Consumer: "billing", Options: inbox.Options{Describe: func(*message.Message) (string, string) { *asked++; return "", "" }},
	}.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	return asked, func() {
		_, err := handler(message.NewMessage("order-17", nil))
		require.NoError(t, err)
	}
}

// TestAnEventKeepsItsMetadata: a handler may change the message's while an observer's goroutine reads the event's.
func TestAnEventKeepsItsMetadata(t *testing.T) {
	var told []inbox.Event
	observers := []inbox.Observer{inbox.On(func(_ context.Context, e inbox.Event) { told = append(told, e) })}
	_, store, done := exampleStore(inbox.Config{Observers: observers, WithoutPlugin: true})
	defer done()
	for what, middleware := range map[string]message.HandlerMiddleware{
		"Inbox": millrace.Inbox{Store: store, Consumer: "billing"}.Middleware,
		"Deduplicate": millrace.Deduplicate{
			Claims: inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{Observers: observers}), Consumer: "mails",
		}.Middleware,
	} {
		told = nil
		msg := message.NewMessage("order-17", nil)
		msg.Metadata.Set("attempt", "1")
		_, err := middleware(func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set("attempt", "2")
			return nil, nil
		})(msg)
		require.NoError(t, err)
		msg.Metadata.Set("attempt", "3")
		require.NotEmpty(t, told, what)
		for _, e := range told {
			assert.Equal(t, "1", e.Metadata.Get("attempt"), "%s, %s", what, e.Kind)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	names := map[string]bool{}
	for k := inbox.KindReceived; k <= inbox.KindBatch; k++ {
		names[k.String()] = true
		assert.False(t, strings.HasPrefix(k.String(), "Kind("), k)
	}
	assert.Len(t, names, int(inbox.KindBatch), "each has its own")
	assert.Equal(t, "Kind(0)", inbox.Kind(0).String())
	assert.Equal(t, "Kind(255)", inbox.Kind(255).String())
	assert.Equal(t, "double effect", inbox.KindDoubleEffect.String())
}
