package batch_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestEventsOfBatches: each try has one event, and the first one of a batch says how long it gathered.
func TestEventsOfBatches(t *testing.T) {
	t.Parallel()
	const n = 8
	type event struct {
		reason string
		count  int
		first  bool
	}
	for name, c := range map[string]struct {
		fail func(bad *message.Message, err error) error // nil: it succeeds
		want []event
	}{
		"committed": {nil, []event{{inbox.ReasonCommitted, n, true}}},
		"halved": {func(_ *message.Message, err error) error { return err }, []event{
			{inbox.ReasonHalved, 8, true}, {inbox.ReasonHalved, 4, false}, {inbox.ReasonHalved, 2, false},
			{inbox.ReasonCommitted, 2, false}, {inbox.ReasonCommitted, 4, false},
		}},
		"named": {millrace.Failed, []event{{inbox.ReasonNamed, 8, true}, {inbox.ReasonCommitted, 7, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, "sqlite"))
			var got []event
			store := rig.NewStore(t, b.db.DB, inbox.Config{Observers: []inbox.Observer{
				inbox.On(func(ctx context.Context, e inbox.Event) {
					assert.Equal(t, "billing", e.Consumer)
					assert.Len(t, inbox.Internals{}.BatchOf(ctx).Deliveries, e.Count)
					got = append(got, event{e.Reason, e.Count, e.Duration > 0})
				}, inbox.KindBatch),
				inbox.On(func(context.Context, inbox.Event) { panic("an observer") }, inbox.KindBatch),
			}})
			bad, effects := "", n
			b.errs(start(b.batch(n, func(ctx context.Context, msgs []*message.Message) error {
				if c.fail != nil && len(msgs) == n {
					bad, effects = msgs[0].UUID, n-1
				}
				if msgs[0].UUID == bad {
					return c.fail(msgs[0], errBoom)
				}
				return apply(ctx, msgs)
			}, on(store)), newMessages(n)))
			assert.Equal(t, c.want, got)
			assert.Equal(t, effects, b.effects())
			assert.EqualValues(t, len(got), store.Panics(), "a panic of an observer ends nothing")
		})
	}
}

// TestEventOfABatchOfOne: so that somebody sees that nothing gathers.
func TestEventOfABatchOfOne(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	var got []inbox.Event
	store := rig.NewStore(t, b.db.DB, inbox.Config{Observers: []inbox.Observer{
		inbox.On(func(_ context.Context, e inbox.Event) { got = append(got, e) }, inbox.KindBatch),
	}})
	b.must(b.batch(1, apply, on(store)), newMessages(1))
	require.Len(t, got, 1)
	assert.Equal(t, inbox.ReasonAlone, got[0].Reason)
	assert.Equal(t, 1, got[0].Count)
	assert.Positive(t, got[0].Duration)
}

// named is a subscriber of another name.
type named struct {
	*rig.Feed
	name string
}

func (n named) String() string { return n.name }

// TestASubscriberOfOneMessageAtATime is named in the log, once.
func TestASubscriberOfOneMessageAtATime(t *testing.T) {
	t.Parallel()
	const line = "inbox: the subscriber delivers one message at a time, so each batch has one; said once per consumer"
	for source, want := range map[[2]string]int{
		{"amqp.Subscriber"}: 1, {"jetstream.Subscriber"}: 1, {"rabbitmq.Subscriber"}: 0, {"kafka.Subscriber"}: 0,
		{"amqp.Subscriber", "stored first"}: 0,
	} {
		t.Run(strings.Join(source[:], " "), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, "sqlite"))
			batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store}}
			router, feed := rig.NewRouter(t), rig.NewFeed()
			router.AddPlugin(batch.Plugin())
			var sub message.Subscriber = named{feed, source[0]}
			if source[1] != "" {
				var err error
				sub, err = pubsub.Durable{Store: b.store, Consumer: "billing", Mode: pubsub.StoreFirst, Concurrency: 1}.Decorate(sub)
				require.NoError(t, err)
			}
			router.AddConsumerHandler("billing", "orders", sub, batch.ConsumerHandler(apply))
			rig.Run(t, router)
			for _, m := range newMessages(3) {
				feed.Send(t, m)
				assert.True(t, rig.Answer(t, m))
			}
			rig.Eventually(t, "all are handled", func() bool { return b.effects() == 3 })
			assert.Equal(t, want, b.events.Said(line))
		})
	}
}
