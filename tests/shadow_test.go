package tests_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestShadowChangesNoEffect(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, []testdb.Body{
		{Name: "with shadow and without", Why: "rows, acks and produced messages are the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
			without := b.shadowed(nil, nil)
			outside, inside := newWatch(t), newWatch(t)
			assert.Equal(t, without, b.shadowed(outside, nil), "around the inbox")
			assert.Equal(t, without, b.shadowed(nil, inside), "in it")
			assert.Contains(t, without.answers, false)
			assert.NotEmpty(t, without.parked)

			seen, passed := outside.Report().Consumers[0], inside.Report().Consumers[0]
			assert.Equal(t, len(without.answers), seen.Deliveries)
			assert.Positive(t, seen.Keys[0].Duplicates)
			assert.Equal(t, len(without.parked), seen.Keys[0].Collisions, "the inbox finds what shadow saw")
			assert.Zero(t, passed.Keys[0].Duplicates+passed.Keys[0].Collisions, "the inbox lets none through")
			assert.Equal(t, seen.Keys[0].Retries, passed.Keys[0].Retries)
			assert.Equal(t, len(without.effects), seen.Keys[0].Distinct)
		})},
	})
}

func newWatch(t *testing.T) *shadow.Watch {
	t.Helper()
	var observed counter
	t.Cleanup(func() { assert.Positive(t, observed.Load()) })
	w, err := shadow.New(shadow.Config{
		Keys: []inbox.Key{
			inbox.ByMetadata("order_id"), inbox.ByFunc("panics", func(*message.Message) (string, error) { panic("no") }),
		},
		LogEvery: 1, Observers: []shadow.Observer{&observed},
	})
	require.NoError(t, err)
	return w
}

// counter is an observer that counts what it is told.
type counter struct{ atomic.Int64 }

func (c *counter) ObserveShadow(context.Context, string, string, string) { c.Add(1) }

// traces are all that a service leaves behind.
type traces struct {
	answers                       []bool
	effects, claims, parked, sent []string
}

// shadowed delivers a stream to a service, and removes what it leaves.
func (b *bed) shadowed(around, within *shadow.Watch) (left traces) {
	b.Helper()
	out := rig.NewOutbox(b, b.db.DB, box.Config{})
	var chain []message.HandlerMiddleware
	if around != nil {
		chain = append(chain, around.Middleware)
	}
	i := b.patient()
	i.Outbox = out
	chain = append(chain, i.Middleware)
	if within != nil {
		chain = append(chain, within.Middleware)
	}
	failed := map[string]bool{}
	s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
		if err := apply(msg.Context(), msg.UUID); err != nil {
			return nil, err
		}
		if msg.Metadata.Get("fails") != "" && !failed[msg.UUID] {
			failed[msg.UUID] = true
			return nil, errBoom
		}
		invoice := message.NewMessage("invoice for "+msg.UUID, msg.Payload)
		return []*message.Message{invoice}, nil
	}, chain...)
	for _, msg := range doubledStream(60) {
		left.answers = append(left.answers, s.deliver(msg))
	}
	require.NoError(b, s.router.Close())
	require.NoError(b, <-s.stopped)

	for _, list := range []struct {
		into  *[]string
		query string
	}{
		{&left.effects, `SELECT uuid FROM effects ORDER BY uuid`},
		{&left.claims, `SELECT message_id FROM millrace_claims ORDER BY message_id`},
		{&left.parked, `SELECT uuid FROM millrace_messages ORDER BY uuid`},
		{&left.sent, `SELECT uuid FROM millrace_outbox ORDER BY uuid`},
	} {
		require.NoError(b, b.db.SelectContext(b.Context(), list.into, list.query))
	}
	for _, table := range []string{"effects", "millrace_claims", "millrace_messages", "millrace_outbox"} {
		b.exec(`DELETE FROM ` + table)
	}
	b.store = b.newStore(b.db.DB, inbox.Config{}) // the one before remembers what it has handled
	return left
}

// doubledStream is deliveries of n messages: some twice, some of one id with two payloads,
// some that fail at first, in disorder.
func doubledStream(n int) (all []*message.Message) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		msg := message.NewMessage(fmt.Sprintf("id-%03d", i), []byte(fmt.Sprint("payload ", i)))
		msg.Metadata.Set("order_id", fmt.Sprint(i))
		box.Stamp(msg, fmt.Sprint("account-", i%7), int64(i/7)+1)
		copies := []*message.Message{msg}
		switch r.IntN(6) {
		case 0:
			copies = append(copies, again(msg))
		case 1:
			msg.Metadata.Set("fails", "once")
			copies = append(copies, again(msg))
		case 2:
			other := message.NewMessage(msg.UUID, []byte("other "+string(msg.Payload)))
			all = append(all, msg, other) // in this order
			copies = nil
		}
		for _, c := range copies {
			at := max(0, len(all)-r.IntN(10))
			all = append(all[:at], append([]*message.Message{c}, all[at:]...)...)
		}
	}
	return all
}
