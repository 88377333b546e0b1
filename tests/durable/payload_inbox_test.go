package durable_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// inboxPayloadBodies: what the inbox itself stores, in the transactions of handlers.
var inboxPayloadBodies = []testdb.Body{
	{Name: "what the inbox itself stores", Why: "parked and failed messages are sealed too, and released as they came", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.sealing(&subjects{}, inbox.Config{BlobsAbove: 100})
		handle := millrace.Inbox{Store: store, Consumer: consumer, Options: inbox.Options{RecordFailures: true}}.
			Middleware(silent(func(msg *message.Message) error {
				if string(msg.Payload) == secret {
					return errBoom
				}
				return effect(msg)
			}))
		require.ErrorIs(t, do(handle, of("alice", secret)), errBoom)
		assert.NotContains(t, string(b.stored()), "secret")
		assert.Equal(t, secret, string(b.only(store, admin.FailedRetryable).Payload))

		other := of("bob", strings.Repeat("y", 200))
		require.NoError(t, do(handle, other))
		collision := message.NewMessage(other.UUID, bytes.Repeat([]byte("z\x00"), 100))
		require.NoError(t, do(handle, collision))
		parked := b.only(store, admin.Parked)
		assert.Equal(t, string(collision.Payload), string(parked.Payload))
		assert.Equal(t, 1, b.registered())
	})},
	{Name: "a key service that is out of reach", Why: "it is no outage of the database, which others use meanwhile", Run: func(t *testing.T, db *testdb.DB) {
		b, keys, events := newBed(t, db), &subjects{}, &rig.Events{}
		store := b.sealing(keys, inbox.Config{Observers: []inbox.Observer{events}})
		handle := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(silent(effect))
		msg := of("alice", secret)
		require.NoError(t, do(handle, msg.Copy()))
		keys.failWith(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
		require.ErrorIs(t, do(handle, message.NewMessage(msg.UUID, []byte("a collision, to be parked"))), syscall.ECONNREFUSED)
		keyless := message.NewMessage("", []byte("to be kept by the queue"))
		copied, _ := b.queue(store).Straight("orders", keyless)
		require.ErrorIs(t, do(handle, copied), syscall.ECONNREFUSED)
		asks := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer, Key: inbox.ByFunc("id", func(*message.Message) (string, error) {
			return "", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		})})
		copied, _ = asks.Straight("orders", keyless)
		require.ErrorIs(t, do(handle, copied), syscall.ECONNREFUSED)
		assert.Zero(t, events.Count("outage"))
	}},
	{Name: "a handler that commits by itself and fails", Why: "its claim is taken back, though the payload cannot be stored", Run: func(t *testing.T, db *testdb.DB) {
		b, runs, keys := newBed(t, db), &counter{}, &subjects{}
		store := b.sealing(keys)
		keys.failWith(errDown)
		handle := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err == nil && runs.run(msg) == 1 {
				err = errors.Join(tx.Commit(), errBoom)
			}
			return nil, err
		})
		msg := of("alice", secret)
		require.ErrorIs(t, do(handle, msg.Copy()), errBoom)
		require.NoError(t, do(handle, msg.Copy()))
		assert.Equal(t, 2, runs.of(msg))
	}},
	{Name: "a handler that commits by itself and succeeds", Why: "it counts, though the codec cannot write in that transaction any more", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		store := b.storeWith(inbox.Config{Payloads: noting{}})
		handle := millrace.Inbox{Store: store, Consumer: consumer, Options: inbox.Options{Journal: true}}.Middleware(silent(func(msg *message.Message) error {
			tx, err := inbox.Tx(msg.Context())
			if err == nil {
				err = errors.Join(effect(msg), tx.Commit())
			}
			return err
		}))
		msg := newMessage()
		if db.Dialect == "sqlite" { // which refuses the commit
			require.ErrorIs(t, do(handle, msg.Copy()), inbox.ErrTxEndedByHandler)
			return
		}
		for range 2 {
			require.NoError(t, do(handle, msg.Copy()))
			assert.Equal(t, 1, b.effects(msg))
			assert.Len(t, b.journal(store), 1)
		}
	}},
	{Name: "an epoch raised over sealed messages", Why: "the new key is made of what they are, not of how they are stored", Run: func(t *testing.T, db *testdb.DB) {
		for name, down := range map[string]error{"open": nil, "not to be opened": errDown} {
			b, keys := &bed{T: t, db: db}, &subjects{}
			store := b.sealing(keys, inbox.Config{BlobsAbove: 50, Namespace: name})
			require.NoError(t, store.Migrate(t.Context()))
			queue := func(epoch int) *inbox.Queue {
				return rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer, Epoch: epoch, Key: inbox.ByPayload(), MinBackoff: time.Millisecond})
			}
			payloads := []string{"one", "two", strings.Repeat("three", 20)}
			for _, payload := range payloads {
				require.NoError(t, queue(0).Put(t.Context(), "orders", of("alice", payload)))
			}
			keys.failWith(down)
			rig.Take(t, queue(1), 0) // moves them
			keys.failWith(nil)
			var got []string
			rig.Eventually(b, "all are there", func() bool {
				for _, l := range rig.Take(t, queue(1), 10) {
					msg, err := l.Message(t.Context())
					require.NoError(t, err)
					got = append(got, string(msg.Payload))
				}
				return len(got) == len(payloads)
			})
			assert.ElementsMatch(t, payloads, got, name)
			for _, payload := range payloads { // copies have the same key
				require.NoError(t, queue(1).Put(t.Context(), "orders", of("alice", payload)))
			}
			assert.Equal(t, 3, b.count(`SELECT COUNT(*) FROM millrace_messages m JOIN millrace_consumers c ON c.id = m.consumer WHERE c.namespace = ?`, []byte(name)))
		}
	}},
	{Name: "a message that is held", Why: "sealed while it waits for its predecessor, also one that came from the table", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.sealing(&subjects{}, inbox.Config{BlobsAbove: 100})
		payloads := []string{"", "one", secret, strings.Repeat("three\x00", 50)}
		version := func(n int) *message.Message {
			msg := of("alice", payloads[n])
			outbox.Stamp(msg, "7", int64(n))
			return msg
		}
		three := version(3)
		apply := func(msg *message.Message) error {
			n, err := strconv.Atoi(msg.Metadata.Get(inbox.VersionField))
			assert.NoError(t, err)
			assert.Equal(t, payloads[n], string(msg.Payload))
			return effect(msg)
		}
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", three))
		s := b.start(quick(store), silent(apply), millrace.Inbox{Store: store}.Middleware, millrace.VersionGate{OnGap: inbox.GapHold}.Middleware)
		assert.True(t, s.deliver(version(2)))
		rig.Eventually(b, "both wait", func() bool { return b.open(admin.Held) == 2 })
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE payload_form <> 1`))
		for _, m := range rig.Find(t, store, admin.Filter{Status: admin.Held}) {
			assert.Equal(t, payloads[m.Version], string(m.Payload))
		}
		assert.True(t, s.deliver(version(1)))
		rig.Eventually(b, "all are applied", func() bool { return b.effects(three) == 1 && b.rows() == 0 })
		rig.Eventually(b, "nothing is left", func() bool { return b.registered() == 0 })
	})},
	{Name: "a sealed outcome", Why: "published as it was produced, or never where it was erased", Run: func(t *testing.T, db *testdb.DB) {
		b, keys := newBed(t, db), &subjects{}
		store := b.sealing(keys)
		handle := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(func(*message.Message) ([]*message.Message, error) {
			nothing := of("bob", "")
			nothing.Payload = nil
			return []*message.Message{of("alice", secret), of("bob", ""), nothing}, nil
		})
		run := func(msg *message.Message) []*message.Message {
			var out []*message.Message
			runAsRouter(t, msg.Copy(), func(c *message.Message) (produced []*message.Message, err error) {
				out, err = handle(c)
				return out, err
			})
			return out
		}
		msg := of("carol", "order")
		first := run(msg)
		require.Len(t, first, 3)
		assert.Equal(t, secret, string(first[0].Payload), "sealing left alone what the router publishes")
		var stored []byte
		require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT messages FROM millrace_outcomes`))
		assert.NotContains(t, string(stored), "secret")
		again := run(msg)
		require.Len(t, again, 3)
		for i := range first {
			assert.Equal(t, first[i].UUID, again[i].UUID)
			assert.Equal(t, first[i].Payload, again[i].Payload)
			assert.Equal(t, first[i].Metadata, again[i].Metadata)
		}
		keys.failWith(errDown)
		_, err := admin.New(store).Unsettled(t.Context(), admin.ConsumerFilter{}, 0, 10)
		require.ErrorIs(t, err, errDown)
		keys.failWith(nil)
		keys.erase("alice")
		story := rig.Story(t, store, msg.UUID)
		require.Len(t, story.Claims, 1)
		require.Len(t, story.Claims[0].Outcome, 3)
		assert.Nil(t, story.Claims[0].Outcome[0].Payload)
		out := &rig.Publisher{}
		sent, err := store.Redispatch(t.Context(), out, 0)
		require.NoError(t, err)
		assert.Equal(t, 1, sent)
		assert.Equal(t, []string{first[1].UUID, first[2].UUID}, uuids(out.Messages()))
		assert.Zero(t, b.outcomes())
	}},
	{Name: "a sealed result", Why: "SetResult keeps what the payload says", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		keys := &subjects{}
		sealing := b.sealing(keys)
		handle := func(store *inbox.Store, body string) (id string) {
			msg := of("alice", "order")
			require.NoError(t, do(millrace.Inbox{Store: store, Consumer: consumer}.Middleware(silent(func(m *message.Message) error {
				return inbox.SetResult(m.Context(), body)
			})), msg))
			return msg.UUID
		}
		result := func(store *inbox.Store, id string) (string, error) {
			t.Helper()
			one, err := store.Result(t.Context(), consumer, id)
			revealed, also := admin.New(store).RevealResult(t.Context(), consumer, 0, id, ada)
			claim := rig.Story(t, store, id).Claims[0]
			for _, other := range []error{also, claim.ResultUnreadable} {
				assert.Equal(t, err == nil, other == nil, "%v, but %v", err, other)
				assert.Equal(t, errors.Is(err, inbox.ErrErased), errors.Is(other, inbox.ErrErased), "%v, but %v", err, other)
			}
			assert.Equal(t, one, revealed)
			assert.Equal(t, one, claim.Result)
			assert.NotZero(t, claim.ResultSize)
			return string(one), err
		}
		plain, sealed := handle(b.store, "secret of bob"), handle(sealing, "secret of alice")
		var kept []string
		require.NoError(t, b.db.SelectContext(t.Context(), &kept, `SELECT body FROM millrace_results`))
		require.Len(t, kept, 2)
		assert.Contains(t, kept, `"secret of bob"`)
		assert.NotContains(t, strings.Join(kept, ""), "secret of alice")
		for id, said := range map[string]string{sealed: `"secret of alice"`, plain: `"secret of bob"`} { // bob's is older than the codec
			body, err := result(sealing, id)
			require.NoError(t, err)
			assert.Equal(t, said, body)
		}
		_, err := result(b.store, sealed)
		require.ErrorContains(t, err, "set Config.Payloads")
		keys.failWith(errDown)
		_, err = result(sealing, sealed)
		require.ErrorIs(t, err, errDown)
		keys.failWith(nil)
		keys.erase("alice")
		for _, gone := range []string{sealed, handle(sealing, "too late to be kept")} {
			_, err = result(sealing, gone)
			require.ErrorIs(t, err, inbox.ErrErased)
		}
	})},
	{Name: "a result that cannot be sealed", Why: "the run is rolled back, and so are its effects", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		keys := &subjects{}
		store := b.sealing(keys)
		handle := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(silent(func(m *message.Message) error {
			return errors.Join(effect(m), inbox.SetResult(m.Context(), secret))
		}))
		msg := of("alice", "order")
		keys.failWith(errDown)
		require.ErrorIs(t, do(handle, msg.Copy()), errDown)
		assert.Zero(t, b.effects(msg))
		keys.failWith(nil)
		require.NoError(t, do(handle, msg.Copy()))
		assert.Equal(t, 1, b.effects(msg))
	})},
}

// noting is a codec that writes in the transaction that stores the message, and does not say why it cannot.
type noting struct{}

func (noting) Seal(ctx context.Context, info payload.Info, plain []byte) ([]byte, error) {
	if rig.Exec(ctx, `INSERT INTO effects (uuid, run) VALUES (?, 0)`, "sealed "+info.UUID[:8]) != nil {
		return nil, errBoom
	}
	return plain, nil
}

func (noting) Open(_ context.Context, _ payload.Info, sealed []byte) ([]byte, error) {
	return sealed, nil
}

// runAsRouter runs h in a router that publishes to nowhere and never acks.
func runAsRouter(t *testing.T, msg *message.Message, h message.HandlerFunc) {
	t.Helper()
	s := rig.NewFeed()
	router := rig.NewRouter(t)
	handled := make(chan error, 1)
	router.AddHandler(consumer, "orders", s, "invoices", &rig.Publisher{}, func(m *message.Message) ([]*message.Message, error) {
		_, err := h(m)
		handled <- err
		return nil, errBoom // so that it is not acked
	})
	rig.Run(t, router)
	s.Send(t, msg)
	require.NoError(t, <-handled)
	require.NoError(t, router.Close())
}
