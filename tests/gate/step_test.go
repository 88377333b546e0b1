package gate_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/keycode"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Where the statement that claims a message advances its aggregate too, that must not show. Each test delivers a first
// version, from which the consumer knows its gate.

// between wraps a handler in an inbox, a middleware and a gate.
func (b *bed) between(middleware message.HandlerMiddleware, gate millrace.VersionGate) message.HandlerFunc {
	return millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{TwinWait: rig.Patience}}.Middleware(middleware(gate.Middleware(handler)))
}

// unlessMarked is a middleware that does something else with messages that have this field.
func unlessMarked(field string, instead func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error)) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if msg.Metadata.Get(field) != "" {
				return instead(h, msg)
			}
			return h(msg)
		}
	}
}

func marked(msg *message.Message, field string) *message.Message {
	msg.Metadata.Set(field, "yes")
	return msg
}

// A message that a middleware keeps from the gate advances nothing.
func TestAMessageThatTheGateNeverSees(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		drop := unlessMarked("drop", func(message.HandlerFunc, *message.Message) ([]*message.Message, error) { return nil, nil })
		h := b.between(drop, millrace.VersionGate{OnGap: inbox.GapFail})
		must(t, h, change("a", 1), marked(change("a", 2), "drop"))
		assert.EqualValues(t, 1, b.version("a"))
		must(t, h, marked(change("a", 2), "drop"), change("a", 2), change("a", 3))
		assert.Equal(t, upTo(3), b.applied("a"))
	}))
}

// A middleware may take the version away, which an optional gate lets through.
func TestAMessageWhoseVersionIsTakenAway(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		strip := unlessMarked("strip", func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
			delete(msg.Metadata, inbox.AggregateField)
			delete(msg.Metadata, inbox.VersionField)
			return h(msg)
		})
		h := b.between(strip, millrace.VersionGate{Optional: true})
		must(t, h, change("a", 1), marked(change("a", 2), "strip"))
		assert.EqualValues(t, 1, b.version("a"))
		assert.Equal(t, []int64{-1}, b.applied(""))
		must(t, h, change("a", 2))
		assert.EqualValues(t, 2, b.version("a"))
	}))
}

// A middleware may give the message to another aggregate once the gate is known.
func TestAMessageOfAnotherAggregate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		move := unlessMarked("move", func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set(inbox.AggregateField, "b")
			return h(msg)
		})
		h := b.between(move, millrace.VersionGate{})
		must(t, h, change("a", 1), change("b", 1), marked(change("a", 2), "move"))
		assert.EqualValues(t, 1, b.version("a"))
		assert.EqualValues(t, 2, b.version("b"))
		must(t, h, change("a", 2), change("b", 3))
		assert.Equal(t, upTo(2), b.applied("a"))
		assert.Equal(t, upTo(3), b.applied("b"))
	}))
}

// A handler that fails or panics takes the version back with the claim.
func TestAFailedHandlerAdvancesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		var h message.HandlerFunc = func(msg *message.Message) ([]*message.Message, error) {
			if msg.Metadata.Get("fails") != "" {
				return nil, errFails
			}
			return handler(msg)
		}
		h = b.gated(b.store, millrace.VersionGate{}, h)
		must(t, h, change("a", 1))
		rig.MustFail(t, h, marked(change("a", 2), "fails"), errFails)
		assert.EqualValues(t, 1, b.version("a"))
		must(t, h, change("a", 2))
		assert.Equal(t, upTo(2), b.applied("a"))
	}))
}

// A message that is parked before the gate sees it advances nothing.
func TestAParkedMessageAdvancesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		once := millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{OnCollision: inbox.CollisionPark}}
		h := once.Middleware(millrace.VersionGate{}.Middleware(handler))
		first := change("a", 1)
		other := change("a", 2)
		other.UUID = first.UUID
		must(t, h, first, other)
		assert.EqualValues(t, 1, b.version("a"))
		assert.Equal(t, 1, b.open(admin.Parked))
		must(t, h, change("a", 2))
		assert.Equal(t, upTo(2), b.applied("a"))
	}))
}

// While a twin holds the claim, the message must not hold its aggregate: whoever locks both begins with the claim.
func TestTheClaimIsLockedBeforeTheAggregate(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		msg := change("a", 2)
		must(t, h, change("a", 1))
		tx := b.changing(`INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
			SELECT consumer, ?, 1, 1, 1, 1 FROM millrace_claims`, keycode.Encode(msg.UUID))
		ended := rig.Handle(h, msg)
		b.db.UntilWaiting(t, 1, "millrace_")
		var version int64
		require.NoError(t, tx.Get(&version, `SELECT version FROM millrace_versions FOR UPDATE NOWAIT`))
		require.NoError(t, tx.Rollback())
		require.NoError(t, rig.Within(t, ended, "the claim is free"))
		assert.Equal(t, upTo(2), b.applied("a"))
	})
}

// The statement sees the versions of when it began: it may wait for the aggregate, and must then see what became of it.
func TestTheAggregateChangesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  string
		applied []int64
		version int64
	}{
		"another field":       {`UPDATE millrace_versions SET token = token + 1`, upTo(2), 2},
		"it is past":          {`UPDATE millrace_versions SET version = 5, first_version = 1, message_id = ''`, upTo(1), 5},
		"a message waits":     {`UPDATE millrace_versions SET held_to = 7`, upTo(2), 2},
		"it is one behind":    {`UPDATE millrace_versions SET version = 0`, upTo(1), 0},
		"it is there no more": {`DELETE FROM millrace_versions`, upTo(1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, b *bed) {
				b.queued(b.store)
				h := b.gated(b.store, millrace.VersionGate{}, handler)
				must(t, h, change("a", 1))
				tx := b.changing(c.change)
				ended := rig.Handle(h, change("a", 2))
				b.db.UntilWaiting(t, 1, "millrace_")
				require.NoError(t, tx.Commit())
				require.NoError(t, rig.Within(t, ended, "the aggregate is free"))
				assert.Equal(t, c.applied, b.applied("a"))
				assert.Equal(t, c.version, b.version("a"))
			})
		})
	}
}

// changing begins a transaction of somebody else, with a statement in it.
func (b *bed) changing(query string, args ...any) *sqlx.Tx {
	b.Helper()
	tx, err := b.db.BeginTxx(context.WithoutCancel(b.Context()), nil)
	require.NoError(b, err)
	b.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.Exec(tx.Rebind(query), args...)
	require.NoError(b, err)
	return tx
}

// Who waits for another process is told the aggregate, and comes back.
func TestAStepWaitsNoLongerThanTwinWait(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		must(t, h, change("a", 1))
		inHaste := millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{TwinWait: 200 * time.Millisecond}}
		hasty, other := inHaste.Middleware(millrace.VersionGate{}.Middleware(handler)), change("b", 1)
		rig.Eventually(t, "a message passes, and the next takes a step", func() bool { _, err := hasty(again(other)); return err == nil })
		tx := b.changing(`UPDATE millrace_versions SET token = token + 1`)
		msg := change("a", 2)
		b.isTold(hasty, msg)
		require.NoError(t, tx.Rollback())
		must(t, h, again(msg))
		assert.Equal(t, upTo(2), b.applied("a"))
	})
}

// On PostgreSQL the gate costs a message in order no statement.
func TestTheGateTakesNoStatement(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "postgres"))
	pool := faults.Open(t, b.db)
	var statements atomic.Int64
	h := b.gated(b.newStore(pool.DB, inbox.Config{}), millrace.VersionGate{}, handler)
	must(t, h, change("a", 1))
	pool.Set(faults.Plan{Before: func(context.Context, string) error { statements.Add(1); return nil }})
	must(t, h, change("a", 2))
	assert.EqualValues(t, 4, statements.Load(), "BEGIN, claim, handler, COMMIT")
}

// A copy of what another process has handled frees the aggregate.
func TestACopyFreesTheAggregate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		one, two := b.gated(b.process(), millrace.VersionGate{}, handler), b.gated(b.process(), millrace.VersionGate{}, handler)
		msg := change("a", 2)
		must(t, one, change("a", 1), msg)
		must(t, two, change("b", 1), again(msg))
		require.NoError(t, rig.Within(t, rig.Handle(two, change("a", 3)), "the next version is applied"))
		assert.Equal(t, upTo(3), b.applied("a"))
	}))
}
