package tests_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// replay is what a replay with this name sends for msg.
func replay(msg *message.Message, name string) *message.Message {
	c := msg.Copy()
	c.Metadata.Set(inbox.ReplayField, name)
	return c
}

func onReplay(rule inbox.ReplayRule) func(*millrace.Inbox) {
	return func(i *millrace.Inbox) { i.OnReplay = rule }
}

func as(consumer string) func(*millrace.Inbox) {
	return func(i *millrace.Inbox) { i.Consumer = consumer }
}

var replayRules = map[string]inbox.ReplayRule{
	"allow": inbox.ReplayAllow, "suppress": inbox.ReplaySuppress, "refuse": inbox.ReplayRefuse,
}

// replayBodies: what a message does that is sent again on purpose.
var replayBodies = []testdb.Body{
	{Name: "a replay of what was completed", Why: "I1: a duplicate, under every rule", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, rule := range replayRules {
			b.events = &rig.Events{}
			store := b.newStore(b.db.Open(t).DB, inbox.Config{LogDropped: true})
			h, msg := b.inbox(effect, on(store), onReplay(rule), as(name)), newMessage("x")
			must(t, h, again(msg))
			must(t, h, replay(msg, "of May"))
			must(t, h, replay(msg, "of May"))
			assert.Equal(t, 1, b.effectsOf(msg.UUID), name)
			assert.Equal(t, 2, b.events.Count("duplicate"), name)
			assert.Equal(t, 2, b.events.Count("replayed"), name)
			told := b.events.Last("replayed")
			assert.Equal(t, "duplicate", told.Reason, name)
			assert.Equal(t, "of May", told.Replay, name)
			assert.Equal(t, msg.UUID, told.MessageID, name)
			story := rig.Story(t, b.store, msg.UUID)
			require.Len(t, story.Dropped, 2, name)
			assert.Contains(t, story.Dropped[0].Reason, `replayed by "of May"`, name)
		}
		b.nothingOpen()
	})},
	{Name: "a replay in a new epoch", Why: "a rebuild: it runs, and the handler may ask", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var asked []bool
		h := func(msg *message.Message) ([]*message.Message, error) {
			asked = append(asked, inbox.IsReplay(msg.Context()))
			return effect(msg)
		}
		msg := newMessage("x")
		must(t, b.inbox(h), again(msg))
		assert.Equal(t, 0, b.events.Count("replayed"))
		given := replay(msg, "")
		must(t, b.inbox(h, func(i *millrace.Inbox) { i.Epoch = 1 }), given)
		assert.Equal(t, []bool{false, true}, asked, "a field without a value is one")
		assert.False(t, inbox.IsReplay(given.Context()), "outside of the handler nobody knows")
		assert.Equal(t, 2, b.effects())
		assert.Equal(t, "ran", b.events.Last("replayed").Reason)
		assert.Contains(t, b.events.Logs(), "inbox: a replayed message came")
	})},
	{Name: "a replay that fails", Why: "it comes again, and is told when it ran", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(failing(1)), replay(newMessage("x"), "r")
		rig.MustFail(t, h, again(msg), errBoom)
		assert.Equal(t, 0, b.events.Count("replayed"))
		assert.Equal(t, "r", b.events.Last("failed").Replay)
		must(t, h, again(msg))
		assert.Equal(t, 1, b.events.Count("replayed"))
	})},
	{Name: "suppress what a handler returns", Why: "its effects are committed, nothing is sent, and it is told", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, through := range map[string]message.Publisher{"the router": nil, "the outbox": b.outbox(box.Config{})} {
			b.events = &rig.Events{}
			b.store = b.process()
			s := b.newService(twoInvoices, millrace.Inbox{
				Store: b.store, Consumer: name, Outbox: through, Options: inbox.Options{OnReplay: inbox.ReplaySuppress},
			}.Middleware)
			msg := newMessage("x")
			assert.True(t, s.deliver(replay(msg, "r")), name)
			assert.Equal(t, 1, b.effectsOf(msg.UUID), name)
			assert.Empty(t, s.published.Messages(), name)
			assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outbox`), name)
			assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outcomes`), name)
			told := b.events.Last("replayed")
			assert.Equal(t, "suppressed", told.Reason, name)
			assert.Equal(t, 2, told.Count, name)
			assert.Contains(t, b.events.Logs(), "inbox: a replayed message came", name)
			assert.True(t, s.deliver(again(msg)), name)
			assert.Equal(t, 1, b.effectsOf(msg.UUID), name)
			assert.Equal(t, 1, b.events.Count("replayed"), "the other one was not replayed")

			assert.True(t, s.deliver(newMessage("y")), name)
			sent := len(s.published.Messages()) + b.count(`SELECT COUNT(*) FROM millrace_outbox`)
			assert.Equal(t, 2, sent, "what was not replayed sends as always")
			require.NoError(t, s.router.Close())
			require.NoError(t, b.store.Close(t.Context()))
			b.exec(`DELETE FROM millrace_outbox`)
		}
	})},
	{Name: "suppress what a handler publishes", Why: "in whatever transaction its context carries", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		out, alone := b.outbox(box.Config{}), b.outbox(box.Config{Standalone: true})
		other := b.db.Open(t)
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			tx, err := inbox.Tx(ctx)
			if err != nil {
				return nil, err
			}
			send := func(ctx context.Context, p *box.Publisher, n int) error {
				var all []*message.Message
				for range n {
					m := newMessage("y")
					m.SetContext(ctx)
					all = append(all, m)
				}
				return p.Publish("invoices", all...)
			}
			_, err = effect(msg)
			if b.db.Dialect != "sqlite" { // where one writes, a second transaction would wait for the first
				err = errors.Join(err, box.InTx(ctx, other.DB, func(ctx context.Context, _ *sqlx.Tx) error { return send(ctx, out, 1) }))
			}
			return nil, errors.Join(err,
				send(ctx, out, 1),
				send(context.WithoutCancel(ctx), alone, 2),
				send(box.WithTx(ctx, tx), out, 3),
				box.InTx(ctx, b.db.DB, func(ctx context.Context, _ *sqlx.Tx) error { return send(ctx, out, 4) }),
			)
		}, onReplay(inbox.ReplaySuppress))
		want := 10
		if b.db.Dialect != "sqlite" {
			want++
		}
		must(t, h, replay(newMessage("x"), "r"))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
		assert.Equal(t, want, b.events.Last("replayed").Count)
		must(t, h, newMessage("x"))
		assert.Equal(t, want, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
	})},
	{Name: "suppress counts the run that was committed", Why: "what failed has sent nothing anyway", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		out, fails := b.outbox(box.Config{}), true
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			m := newMessage("y")
			m.SetContext(msg.Context())
			if err := out.Publish("invoices", m); err != nil || fails {
				return nil, errors.Join(err, errBoom)
			}
			return effect(msg)
		}, onReplay(inbox.ReplaySuppress), recorded)
		msg := replay(newMessage("x"), "r")
		for range 3 {
			rig.MustFail(t, h, again(msg), errBoom)
		}
		assert.Equal(t, 0, b.events.Count("replayed"))
		fails = false
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects(), "its own failure that was recorded is no reason to leave it")
		assert.Equal(t, 1, b.events.Last("replayed").Count)
		b.nothingOpen()
	})},
	{Name: "suppress with nothing to send", Why: "it ran, like any other", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect, onReplay(inbox.ReplaySuppress)), replay(newMessage("x"), "r"))
		assert.Equal(t, "ran", b.events.Last("replayed").Reason)
	})},
	{Name: "refuse a replay", Why: "the handler does not run, and an operator sees why", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		h := func() message.HandlerFunc {
			return b.inbox(effect, on(b.process()), onReplay(inbox.ReplayRefuse))
		}
		must(t, h(), replay(msg, "of May"))
		assert.Equal(t, 0, b.effects())
		assert.Equal(t, "refused", b.events.Last("replayed").Reason)
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		assert.Contains(t, parked[0].Reason, `replayed by "of May"`)
		assert.Contains(t, parked[0].Reason, "Retry")
		assert.Equal(t, "of May", parked[0].Metadata.Get(inbox.ReplayField))
		assert.Equal(t, 1, b.events.Count("parked"))

		must(t, h(), replay(msg, "of June"))
		assert.Equal(t, "duplicate", b.events.Last("replayed").Reason, "it is stored already")
		must(t, h(), again(msg))
		assert.Equal(t, 0, b.effects(), "stored is stored")
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages`))
		must(t, h(), newMessage("y"))
		assert.Equal(t, 1, b.effects(), "what was not replayed runs")
	})},
	{Name: "an operator who wants a refused replay handled", Why: "Retry runs it, as often as it takes, though it bears the field", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.oneHandler("orders", failing(2), millrace.Inbox{Store: b.store, Options: inbox.Options{OnReplay: inbox.ReplayRefuse}}.Middleware)
		msg := newMessage("x")
		assert.True(t, s.deliver(replay(msg, "r")))
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, s.published))
		sent := s.published.Messages()
		require.Len(t, sent, 1)
		assert.Equal(t, "r", sent[0].Metadata.Get(inbox.ReplayField))
		assert.False(t, s.deliver(again(sent[0])))
		assert.False(t, s.deliver(again(sent[0])))
		assert.True(t, s.deliver(again(sent[0])))
		assert.True(t, s.deliver(again(sent[0])))
		assert.True(t, s.deliver(replay(msg, "other")))
		assert.Equal(t, 1, b.effects())
		b.nothingOpen()
		assert.Equal(t, map[string]int{"refused": 1, "ran although refused": 1, "duplicate": 2}, b.replays())
	})},
	{Name: "a wish of an operator counts once", Why: "what was forgotten since, and is replayed again, is refused again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := replay(newMessage("x"), "r")
		s := b.oneHandler("orders", effect, millrace.Inbox{Store: b.store, Options: inbox.Options{OnReplay: inbox.ReplayRefuse}}.Middleware)
		assert.True(t, s.deliver(again(msg)))
		parked := rig.Parked(t, b.store)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, s.published))
		assert.True(t, s.deliver(again(msg)))
		require.NoError(t, s.router.Close())
		b.age(8 * day)
		rig.Purge(t, b.store) // or the janitor of the router, which may still be about to end
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims`))
		must(t, b.inbox(effect, on(b.process()), onReplay(inbox.ReplayRefuse)), again(msg))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, "refused", b.events.Last("replayed").Reason)
	})},
	{Name: "a replay of what is still to be tried", Why: "its own delivery runs it, with all its effects", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, rule := range replayRules {
			fails := true
			s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
				if fails {
					return nil, errBoom
				}
				return invoice(msg)
			}, millrace.Inbox{Store: b.process(), Consumer: name, Options: inbox.Options{OnReplay: rule, RecordFailures: true}}.Middleware)
			msg := newMessage("x")
			assert.False(t, s.deliver(again(msg)), name)
			fails = false
			assert.True(t, s.deliver(replay(msg, "r")), name)
			assert.True(t, s.deliver(again(msg)), name)
			assert.Equal(t, 1, b.effectsOf(msg.UUID), name)
			sent := map[string]bool{} // an outcome that is not settled goes out twice
			for _, m := range s.published.Messages() {
				sent[m.UUID] = true
			}
			assert.Len(t, sent, 1, name)
		}
		b.nothingOpen()
	})},
	{Name: "the field of a replay in the outbox", Why: "a replay may travel through it, and what a handler makes of one is marked only by the handler", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		out := b.outbox(box.Config{})
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			plain, copied := newMessage("plain"), newMessage("copied")
			copied.Metadata = msg.Copy().Metadata
			for _, m := range []*message.Message{plain, copied} {
				m.SetContext(msg.Context())
			}
			return nil, out.Publish("invoices", plain, copied)
		})
		must(t, h, replay(newMessage("x"), "of May"))
		var stored []string
		require.NoError(t, b.db.SelectContext(t.Context(), &stored, `SELECT metadata FROM millrace_outbox ORDER BY id`))
		require.Len(t, stored, 2)
		assert.NotContains(t, stored[0], inbox.ReplayField)
		assert.Contains(t, stored[1], inbox.ReplayField)
		assert.Contains(t, stored[1], "of May")
	})},
	{Name: "a replay of a collision", Why: "another payload is no replay: it is parked as what it is, or refused", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("first")
		must(t, b.inbox(effect), again(msg))
		must(t, b.inbox(effect), replay(message.NewMessage(msg.UUID, []byte("second")), "r"))
		must(t, b.inbox(effect, onReplay(inbox.ReplayRefuse)), replay(message.NewMessage(msg.UUID, []byte("third")), "r"))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, map[string]int{"parked": 1, "refused": 1}, b.replays())
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE original IS NOT NULL`))
	})},
}

func twoInvoices(msg *message.Message) ([]*message.Message, error) {
	out, err := invoice(msg)
	return append(out, newMessage("another")), err
}

// replays counts what became of replayed messages.
func (b *bed) replays() map[string]int {
	counts := map[string]int{}
	for _, e := range b.events.All("replayed") {
		counts[e.Reason]++
	}
	return counts
}

// outbox returns a publisher on the bed's database.
func (b *bed) outbox(config box.Config) *box.Publisher {
	b.Helper()
	return rig.NewOutbox(b, b.db.DB, config)
}
