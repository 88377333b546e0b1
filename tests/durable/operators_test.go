package durable_test

import (
	"bytes"
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
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestOperatorsAreToldTheState(t *testing.T) {
	testdb.Conformance(t, wrongStateBodies)
}

// decision is an operation on one message, and the states in which it is allowed.
type decision struct {
	name    string
	allowed []admin.Status
	decide  func(ctx context.Context, a *admin.Admin, id int64) error
}

var retryable = []admin.Status{admin.Parked, admin.FailedTerminal, admin.FailedRetryable}

func decisions(sent to) []decision {
	return []decision{
		{"retry", retryable, func(ctx context.Context, a *admin.Admin, id int64) error { return a.Retry(ctx, id, ada, sent) }},
		{"replace the payload", retryable, func(ctx context.Context, a *admin.Admin, id int64) error {
			return a.ReplacePayload(ctx, id, []byte("right"), ada)
		}},
		{"discard", retryable, func(ctx context.Context, a *admin.Admin, id int64) error { return a.Discard(ctx, id, ada) }},
	}
}

// parked parks n messages, which no queue delivers, and returns their ids.
func (b *bed) parked(n int) (ids []int64) {
	b.Helper()
	s, _ := b.stuck(n)
	require.NoError(b, s.router.Close())
	b.unserve()
	b.db.Do(b, `UPDATE millrace_messages SET status = ?`, admin.Parked)
	for _, m := range b.find(admin.Filter{Status: admin.Parked}) {
		ids = append(ids, m.ID)
	}
	require.Len(b, ids, n)
	return ids
}

// overtaken returns an operator before whose next transaction change is done, after the operator has looked.
func (b *bed) overtaken() (operator *admin.Admin, next func(change func())) {
	pool := faults.Open(b, b.db)
	operator = admin.New(rig.NewStore(b, pool.DB, inbox.Config{AllowPayloadChange: true}))
	return operator, func(change func()) {
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call == faults.Begin {
				pool.Set(faults.Plan{})
				change()
			}
			return nil
		}})
	}
}

var wrongStateBodies = []testdb.Body{
	{Name: "a message in another state", Why: "ErrWrongState names the state, and those that allow it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		id, sent := b.parked(1)[0], to{}
		operator := admin.New(rig.NewStore(t, b.db.DB, inbox.Config{AllowPayloadChange: true}))
		for _, d := range decisions(sent) {
			for status := admin.Received; status <= admin.Held; status++ {
				if slices.Contains(d.allowed, status) {
					continue
				}
				b.db.Do(t, `UPDATE millrace_messages SET status = ?`, status)
				for _, serve := range []func(){b.unserve, b.believedServed} {
					serve()
					err := d.decide(t.Context(), operator, id)
					require.ErrorIs(t, err, inbox.ErrWrongState, "%s %s", d.name, status)
					require.NotErrorIs(t, err, inbox.ErrNotFound)
					for _, part := range append([]admin.Status{status}, d.allowed...) {
						require.ErrorContains(t, err, part.String(), d.name)
					}
				}
			}
			b.unserve()
			require.ErrorIs(t, d.decide(t.Context(), operator, id+1), inbox.ErrNotFound, d.name)
			require.NotErrorIs(t, d.decide(t.Context(), operator, id+1), inbox.ErrWrongState, d.name)
		}
		for _, status := range []admin.Status{admin.Received, admin.InProgress, admin.Settling, admin.Held} {
			_, err := operator.RetryAll(t.Context(), admin.Filter{Status: status}, ada, sent, admin.Pace{})
			require.ErrorContains(t, err, status.String())
			_, err = operator.DiscardAll(t.Context(), admin.Filter{Status: status}, ada, admin.Pace{})
			require.ErrorContains(t, err, status.String())
		}
		b.db.Do(t, `UPDATE millrace_messages SET status = ?, lease_token = 7`, admin.FailedRetryable)
		for _, d := range decisions(sent) {
			require.ErrorIs(t, d.decide(t.Context(), operator, id), inbox.ErrWrongState, d.name)
			require.ErrorContains(t, d.decide(t.Context(), operator, id), "a process has leased it", d.name)
		}
		assert.Empty(t, sent)
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_audit`))
	})},
	{Name: "a message that changes between look and write", Why: "gone is ErrNotFound, another state ErrWrongState", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		sent := to{}
		operator, next := b.overtaken()
		for _, served := range []bool{false, true} {
			for _, d := range decisions(sent) {
				id := b.parked(1)[0]
				if served {
					b.believedServed()
				}
				next(func() { b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.InProgress, id) })
				err := d.decide(t.Context(), operator, id)
				require.ErrorIs(t, err, inbox.ErrWrongState, d.name)
				require.NotErrorIs(t, err, inbox.ErrNotFound)
				require.ErrorContains(t, err, "IN_PROGRESS", d.name)

				b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.Parked, id)
				next(func() { b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.FailedTerminal, id) })
				err = d.decide(t.Context(), operator, id)
				require.ErrorIs(t, err, inbox.ErrWrongState, d.name)
				require.ErrorContains(t, err, "FAILED_TERMINAL", d.name)

				b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.FailedRetryable, id)
				next(func() { b.db.Do(t, `UPDATE millrace_messages SET lease_token = 7 WHERE id = ?`, id) })
				err = d.decide(t.Context(), operator, id)
				require.ErrorIs(t, err, inbox.ErrWrongState, d.name)
				require.ErrorContains(t, err, "a process has leased it", d.name)

				b.db.Do(t, `UPDATE millrace_messages SET lease_token = 0 WHERE id = ?`, id)
				next(func() { b.db.Do(t, `DELETE FROM millrace_messages WHERE id = ?`, id) })
				err = d.decide(t.Context(), operator, id)
				require.ErrorIs(t, err, inbox.ErrNotFound, d.name)
				require.NotErrorIs(t, err, inbox.ErrWrongState)
			}
		}
		assert.Empty(t, sent)
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_audit`))
	})},
	{Name: "a call for many that is overtaken", Why: "it passes over what changed or went, and does the rest", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		operator, next := b.overtaken()
		change := func(ids []int64) func() {
			return func() {
				b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.InProgress, ids[0])
				b.db.Do(t, `DELETE FROM millrace_messages WHERE id = ?`, ids[2])
			}
		}
		sent := to{}
		for name, call := range map[string]func() (int, error){
			"retried where a queue serves": func() (int, error) {
				b.believedServed()
				return operator.RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{})
			},
			"sent back": func() (int, error) { return operator.RetryAll(t.Context(), admin.Filter{}, ada, sent, admin.Pace{}) },
			"discarded": func() (int, error) { return operator.DiscardAll(t.Context(), admin.Filter{}, ada, admin.Pace{}) },
		} {
			next(change(b.parked(5)))
			n, err := call()
			require.NoError(t, err, name)
			assert.Equal(t, 3, n, name)
			b.db.Do(t, `DELETE FROM millrace_messages`)
		}
		assert.Len(t, sent["orders"], 3)
		assert.Equal(t, 6, b.audited("retry"))
	})},
	{Name: "many are retried, and a queue serves some", Why: "those are tried, whatever becomes of the others", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, to := range map[string]message.Publisher{"no publisher": nil, "one that refuses all": refuses(func() {})} {
			served := b.parked(2)
			b.storeIn(inbox.QueueConfig{Epoch: 1}, newMessage(), newMessage())
			b.db.Do(t, `UPDATE millrace_messages SET status = ?, attempts = 1`, admin.Parked)
			b.believedServed()
			b.db.Do(t, `UPDATE millrace_consumers SET served_until = 1 WHERE epoch = 1`)
			var mark int64
			n, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, ada, to, admin.Pace{Mark: &mark})
			if to == nil {
				require.ErrorIs(t, err, inbox.ErrNotServed)
				assert.NotZero(t, mark, "another call goes on behind what it cannot send back")
			} else {
				require.ErrorIs(t, err, errBoom)
			}
			assert.Equal(t, len(served), n, name)
			assert.Equal(t, []int{2, 2}, []int{b.open(admin.FailedRetryable), b.open(admin.Parked)}, name)
			b.db.Do(t, `DELETE FROM millrace_messages`)
			b.db.Do(t, `DELETE FROM millrace_claims`)
		}
	})},
	{Name: "a call for many that is overtaken, and ends on its way", Why: "another call goes on behind what was done", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		ids, pool := b.parked(5), faults.Open(t, b.db)
		b.believedServed()
		operator := admin.New(rig.NewStore(t, pool.DB, inbox.Config{}))
		ctx, end := context.WithCancel(t.Context())
		begun := 0
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call != faults.Begin {
				return nil
			}
			switch begun++; begun {
			case 1: // of all together
				b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.InProgress, ids[2])
			case 3: // of the second one alone
				end()
			}
			return nil
		}})
		var mark int64
		n, err := operator.RetryAll(ctx, admin.Filter{}, ada, nil, admin.Pace{Mark: &mark})
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 2, n)
		assert.Equal(t, ids[1], mark)
		b.db.Do(t, `UPDATE millrace_messages SET status = ?`, admin.Parked) // those two have failed again
		n, err = operator.RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{Mark: &mark})
		require.NoError(t, err)
		assert.Equal(t, 3, n)
		assert.Equal(t, 2, b.open(admin.Parked))
	})},
	{Name: "a call for many that is overtaken, on a slow database", Why: "what is then done message by message has for each the time that all had together", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		ids, pool := b.parked(5), faults.Open(t, b.db)
		var begun bool
		var ends []time.Time
		pool.Set(faults.Plan{Before: func(ctx context.Context, call string) error {
			switch {
			case call == faults.Begin && !begun:
				begun = true
				b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.InProgress, ids[2])
			case strings.Contains(call, "DELETE FROM millrace_messages"):
				end, _ := ctx.Deadline()
				ends = append(ends, end)
			}
			return nil
		}})
		n, err := admin.New(rig.NewStore(t, pool.DB, inbox.Config{})).DiscardAll(t.Context(), admin.Filter{}, ada, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 4, n)
		require.Greater(t, len(ends), 5)
		alone := ends[len(ends)-5:]
		for i := range alone[1:] {
			assert.True(t, alone[i+1].After(alone[i]), ends)
		}
	})},
}

func TestOperatorsCorrectPayloads(t *testing.T) {
	testdb.Conformance(t, replaceBodies)
}

var replaceBodies = []testdb.Body{
	{Name: "a corrected payload", Why: "runs once; a copy with the old one is a collision", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(1)
		id := b.find(admin.Filter{})[0].ID
		require.ErrorContains(t, admin.New(b.store).ReplacePayload(t.Context(), id, []byte("right"), ada), "AllowPayloadChange")
		allowed := rig.NewStore(t, b.db.DB, inbox.Config{AllowPayloadChange: true})
		require.ErrorContains(t, admin.New(allowed).ReplacePayload(t.Context(), id, nil, ada), "nil")
		require.ErrorContains(t, admin.New(allowed).ReplacePayload(t.Context(), id, make([]byte, admin.MaxPayload+1), ada), "more than")
		require.Error(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte("right"), admin.Operator{}))
		require.ErrorIs(t, admin.New(allowed).ReplacePayload(t.Context(), id+1, []byte("right"), ada), inbox.ErrNotFound)
		require.ErrorContains(t, admin.New(allowed).ReplacePayload(t.Context(), id, msgs[0].Payload, ada), "has that payload")
		assert.Zero(t, b.audited("replace payload"))

		require.NoError(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte("wrong again"), ada))
		require.NoError(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte("right"), ada))
		assert.Equal(t, "right", string(b.find(admin.Filter{})[0].Payload))
		story := rig.Story(t, b.store, msgs[0].UUID)
		require.Len(t, story.Audit, 2)
		assert.Regexp(t, `payload hash [0-9a-f]{16} is now [0-9a-f]{16}$`, story.Audit[1].Detail)

		s.mended.Store(true)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), id, ada, nil))
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		right := msgs[0].Copy()
		right.Payload = []byte("right")
		assert.True(t, s.deliver(right), "a copy of what was handled")
		rig.Eventually(b, "the copy is closed", func() bool { return b.rows() == 0 })
		assert.True(t, s.deliver(msgs[0]), "a late copy of what was stored first")
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 && b.rows() == 1 })
		assert.Equal(t, msgs[0].UUID, b.find(admin.Filter{})[0].Original)
		assert.Equal(t, 1, b.effects(msgs[0]))
	})},
	{Name: "a sealed payload that is corrected", Why: "it is sealed again, and kept elsewhere where it is large", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.sealing(&subjects{}, inbox.Config{BlobsAbove: 1000, AllowPayloadChange: true})
		msg := of("alice", secret)
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", msg))
		large := bytes.Repeat([]byte("right"), 1000)
		var got atomic.Value
		durable := storeFirst(store)
		durable.MaxAttempts = 1
		s := b.inboxed(durable, func(msg *message.Message) error {
			if len(msg.Payload) < len(large) {
				return errBoom
			}
			got.Store([]byte(msg.Payload))
			return effect(msg)
		})
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		id := b.only(store, admin.Parked).ID
		blind := rig.NewStore(t, b.db.DB, inbox.Config{AllowPayloadChange: true})
		require.ErrorContains(t, admin.New(blind).ReplacePayload(t.Context(), id, large, ada), "encrypted", "it would be stored in the clear")
		require.NoError(t, admin.New(store).ReplacePayload(t.Context(), id, large, ada))
		assert.Equal(t, large, b.only(store, admin.Parked).Payload)
		assert.Empty(t, b.stored(), "it is kept elsewhere")
		var blob []byte
		require.NoError(t, b.db.GetContext(t.Context(), &blob, `SELECT body FROM millrace_blobs`))
		assert.NotContains(t, string(blob), "right")
		require.NoError(t, admin.New(store).Retry(t.Context(), id, ada, s.published))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 })
		assert.Equal(t, large, got.Load())
	})},
	{Name: "a late copy of what was corrected and not yet tried", Why: "a collision too: nothing puts the old payload back", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(1)
		id := b.find(admin.Filter{})[0].ID
		allowed := rig.NewStore(t, b.db.DB, inbox.Config{AllowPayloadChange: true})
		require.NoError(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte{}, ada), "empty is not nil")
		assert.True(t, s.deliver(msgs[0]))
		assert.Len(t, b.find(admin.Filter{Status: admin.Parked}), 1)
		assert.Len(t, b.find(admin.Filter{Status: admin.FailedTerminal}), 1)
	})},
}
