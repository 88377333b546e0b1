package durable_test

import (
	"context"
	"testing"

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
		{"discard", retryable[:2], func(ctx context.Context, a *admin.Admin, id int64) error { return a.Discard(ctx, id, ada) }},
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
				allowed := false
				for _, s := range d.allowed {
					allowed = allowed || s == status
				}
				if allowed {
					continue
				}
				b.db.Do(t, `UPDATE millrace_messages SET status = ?`, status)
				err := d.decide(t.Context(), operator, id)
				require.ErrorIs(t, err, inbox.ErrWrongState, "%s %s", d.name, status)
				require.NotErrorIs(t, err, inbox.ErrNotFound)
				for _, part := range append([]admin.Status{status}, d.allowed...) {
					require.ErrorContains(t, err, part.String(), d.name)
				}
			}
			require.ErrorIs(t, d.decide(t.Context(), operator, id+1), inbox.ErrNotFound, d.name)
			require.NotErrorIs(t, d.decide(t.Context(), operator, id+1), inbox.ErrWrongState, d.name)
		}
		b.db.Do(t, `UPDATE millrace_messages SET status = ?, lease_token = 7`, admin.FailedRetryable)
		for _, d := range decisions(sent)[:2] {
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
		next(change(b.parked(5)))
		b.believedServed()
		n, err := operator.RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 3, n)
		b.db.Do(t, `DELETE FROM millrace_messages`)
		next(change(b.parked(5)))
		n, err = operator.DiscardAll(t.Context(), admin.Filter{}, ada, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 3, n)
	})},
}
