package durable_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestALeaseInVainCostsNothing: what was leased by a call that then failed, or was
// cancelled, is there for everybody else at once, and charged with nothing.
func TestALeaseInVainCostsNothing(t *testing.T) {
	testdb.Conformance(t, vainBodies)
}

// vain is a queue on a pool whose next lease is followed by a fault.
type vain struct {
	*bed
	pool  *faults.Faults
	queue *inbox.Queue
}

func newVain(t *testing.T, db *testdb.DB) *vain {
	t.Helper()
	v := &vain{bed: newBed(t, db), pool: faults.Open(t, db)}
	v.queue = v.queueOn(v.newStore(v.pool.DB))
	return v
}

func (b *bed) queueOn(store *inbox.Store) *inbox.Queue {
	b.Helper()
	return rig.Queue(b, store, inbox.QueueConfig{Consumer: consumer, Lease: time.Hour, MaxAttempts: 1})
}

// after has fault called for the commit of the next lease, and for each call that follows.
func (v *vain) after(fault func(call string) error) {
	leased := false
	v.pool.Set(faults.Plan{
		Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "attempts = attempts +") || strings.Contains(call, "ELSE 2 END, lease_token") {
				leased = true
			} else if leased && call != faults.Commit {
				return fault(call)
			}
			return nil
		},
		After: func(_ context.Context, call string) error {
			if leased && call == faults.Commit {
				return fault(call)
			}
			return nil
		},
	})
}

// failsAt has each call fail that follows the next lease and says so.
func (v *vain) failsAt(part string) {
	v.after(func(call string) error {
		if strings.Contains(call, part) {
			return errFault
		}
		return nil
	})
}

// fails says that a call of Take fails, and mends the pool.
func (v *vain) fails(ctx context.Context, why error) {
	v.Helper()
	taken, _, err := v.queue.Take(ctx, 10, time.Second)
	require.ErrorIs(v, err, why)
	assert.Empty(v, taken)
	v.pool.Set(faults.Plan{})
}

// takes returns what another process is given.
func (v *vain) takes() []*inbox.Leased {
	v.Helper()
	return rig.Take(v, v.queueOn(v.process()), 10)
}

// lapse has every lease end.
func (v *vain) lapse() {
	v.Helper()
	v.db.Do(v, `UPDATE millrace_messages SET due_at = 1`)
}

var errFault = errors.New("fault")

var vainBodies = []testdb.Body{
	{Name: "cancelled after the lease", Why: "others need not wait for the end of the lease", Run: testdb.With(newVain, func(t *testing.T, v *vain) {
		require.NoError(t, v.queue.Put(t.Context(), "orders", newMessage(), newMessage(), newMessage()))
		ctx, cancel := context.WithCancel(t.Context())
		v.after(func(call string) error {
			if call == faults.Commit {
				cancel()
			}
			return nil
		})
		v.fails(ctx, context.Canceled)
		assert.Len(t, v.takes(), 3)
	})},
	{Name: "the answer to the lease got lost", Why: "it may have been given", Run: testdb.With(newVain, func(t *testing.T, v *vain) {
		require.NoError(t, v.queue.Put(t.Context(), "orders", newMessage(), newMessage(), newMessage()))
		lost := false
		v.after(func(call string) error {
			if call == faults.Commit && !lost {
				lost = true
				return faults.ErrLost
			}
			return nil
		})
		v.fails(t.Context(), faults.ErrLost)
		assert.Len(t, v.takes(), 3)
	})},
	{Name: "a suspect", Why: "it was charged for a try that it did not get, and still is to be tried alone", Run: testdb.With(newVain, func(t *testing.T, v *vain) {
		require.NoError(t, v.queue.Put(t.Context(), "orders", newMessage(), newMessage()))
		taken := v.takes()
		_, err := v.queue.HandOut(t.Context(), taken...)
		require.NoError(t, err)
		v.lapse()
		v.failsAt("millrace_claims")
		v.fails(t.Context(), errFault)
		assert.Zero(t, v.count(`SELECT SUM(attempts) FROM millrace_messages`))
		taken = v.takes()
		require.Len(t, taken, 1, "alone")
		assert.True(t, taken[0].Suspect())
	})},
	{Name: "one that ended the process as often as it may fail", Why: "it must not run once more", Run: testdb.With(newVain, func(t *testing.T, v *vain) {
		require.NoError(t, v.queue.Put(t.Context(), "orders", newMessage()))
		_, err := v.queue.HandOut(t.Context(), v.takes()...)
		require.NoError(t, err)
		v.lapse()
		require.Len(t, v.takes(), 1, "its only try alone")
		v.lapse()
		v.failsAt("INSERT INTO millrace_claims") // it is about to be parked
		v.fails(t.Context(), errFault)
		assert.Empty(t, v.takes())
		assert.Equal(t, 1, v.open(admin.Parked))
	})},
	{Name: "copies of what was handled", Why: "they are closed, which is not in vain: others may be due behind them", Run: testdb.With(newVain, func(t *testing.T, v *vain) {
		require.NoError(t, v.queue.Put(t.Context(), "orders", newMessages(5)...))
		v.db.Do(t, `INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
			SELECT consumer, message_id, payload_hash, 1, 1, received_at FROM millrace_messages`)
		for _, left := range []int{3, 1, 0} {
			taken, next, err := v.queue.Take(t.Context(), 2, time.Second)
			require.NoError(t, err)
			assert.Empty(t, taken)
			assert.Zero(t, next)
			assert.Equal(t, left, v.rows())
		}
		_, next, err := v.queue.Take(t.Context(), 2, time.Second)
		require.NoError(t, err)
		assert.Equal(t, time.Second, next, "nothing is left")
	})},
	{Name: "marked with the lease", Why: "what is handed out at once may be what ends the process, and nothing else", Run: testdb.With(newVain, func(t *testing.T, v *vain) {
		require.NoError(t, v.queue.Put(t.Context(), "orders", newMessage(), newMessage(), newMessage()))
		v.failsAt("millrace_claims")
		taken, _, err := v.queue.TakeOut(t.Context(), 2, 10, time.Second)
		require.ErrorIs(t, err, errFault)
		assert.Empty(t, taken)
		assert.Equal(t, 3, v.open(admin.Received), "what failed is undone")
		v.pool.Set(faults.Plan{})

		taken = rig.TakeOut(t, v.queue, 2, 10)
		require.Len(t, taken, 3)
		assert.Equal(t, 2, v.open(admin.InProgress))
		v.pool.Set(faults.Plan{Before: func(context.Context, string) error { return errFault }})
		ours, err := v.queue.HandOut(t.Context(), taken[:2]...)
		require.NoError(t, err, "nothing is left to write")
		assert.Equal(t, taken[:2], ours)
		v.pool.Set(faults.Plan{})
		require.NoError(t, v.queue.PutBack(t.Context(), taken...))
		assert.Equal(t, 3, v.open(admin.Received), "as if nothing had happened")

		taken = rig.TakeOut(t, v.queue, 2, 10)
		require.Len(t, taken, 3)
		v.lapse()
		for range 2 {
			taken = v.takes()
			require.Len(t, taken, 1, "alone")
			assert.True(t, taken[0].Suspect())
			require.NoError(t, taken[0].Finish(t.Context()))
		}
		taken = v.takes()
		require.Len(t, taken, 1)
		assert.False(t, taken[0].Suspect())
	})},
}
