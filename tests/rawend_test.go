package tests_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// afterEnd is what becomes of a handler that writes, ends the transaction by statements, writes
// again and succeeds; and how many of its two writes are there then, and after a redelivery
// that writes once.
type afterEnd struct {
	told  fate
	first int
	then  int
}

type fate int

const (
	completed fate = iota // it counts, and is logged as an error
	refused               // it does not count
	unseen                // it counts, and nothing is said
)

// rawEnds: outside of a transaction the servers commit each statement by itself, so what is
// written there stays.
var rawEnds = map[string]map[string]afterEnd{
	"COMMIT": {
		"postgres": {completed, 2, 2}, "mysql": {completed, 2, 2}, "sqlite": {refused, 0, 1},
	},
	"ROLLBACK": {
		"postgres": {refused, 1, 2}, "mysql": {refused, 1, 2}, "sqlite": {refused, 0, 1},
	},
	"COMMIT; BEGIN": {
		"postgres": {unseen, 2, 2}, "mysql": {unseen, 2, 2}, "sqlite": {refused, 0, 1},
	},
	"ROLLBACK; BEGIN": {
		"postgres": {unseen, 1, 2}, "mysql": {refused, 0, 1}, "sqlite": {refused, 0, 1},
	},
	"COMMIT AND CHAIN":   {"postgres": {unseen, 2, 2}, "mysql": {unseen, 2, 2}},
	"ROLLBACK AND CHAIN": {"postgres": {unseen, 1, 2}, "mysql": {refused, 0, 1}},
	"CREATE TABLE other (id INT)": {
		"mysql": {completed, 2, 2},
	},
	"ABORT": {"postgres": {refused, 1, 2}},
}

func TestAStatementThatEndsTheTransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for statements, wants := range rawEnds {
			if want, concerns := wants[db.Dialect]; concerns {
				t.Run(statements, func(t *testing.T) { endedBy(t, b, statements, want) })
			}
		}
	})
}

func endedBy(t *testing.T, b *bed, statements string, want afterEnd) {
	disturbed := true
	handler := func(msg *message.Message) ([]*message.Message, error) {
		_, err := effect(msg)
		require.NoError(t, err)
		if !disturbed {
			return nil, nil
		}
		for s := range strings.SplitSeq(statements, ";") {
			_ = raw(msg, s) // SQLite refuses it
		}
		_, _ = effect(msg) // and this one
		return nil, nil
	}
	msg := newMessage("x")
	before := b.events.Count("ended tx")
	_, err := b.inbox(handler)(again(msg))
	if want.told == refused {
		require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
	} else {
		require.NoError(t, err)
	}
	assert.Equal(t, want.told != unseen, b.events.Count("ended tx") == before+1, "said so")
	assert.Equal(t, want.first, b.effectsOf(msg.UUID), "of the first delivery")
	disturbed = false
	h := b.inbox(handler, on(b.process())) // which remembers nothing
	must(t, h, again(msg))
	must(t, h, again(msg))
	assert.Equal(t, want.then, b.effectsOf(msg.UUID), "after a redelivery")
}

func leavesRowsOpen(t *testing.T, b *bed) {
	t.Helper()
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		if _, err := effect(msg); err != nil {
			return nil, err
		}
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return nil, err
		}
		rows, err := tx.QueryContext(msg.Context(), `SELECT 1 UNION ALL SELECT 2`) //nolint:rowserrcheck,sqlclosecheck // they are left open
		if err != nil || !rows.Next() {
			return nil, errors.Join(err, errBoom)
		}
		return nil, inbox.SetResult(msg.Context(), "found")
	})
	_, err := h(newMessage("x"))
	says := map[string]string{"pgx": "rows of a query are open", "mysql": "rows of a query are open", "postgres": "already a query"}[b.db.Driver]
	if says == "" { // it does no harm there
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, says)
	require.NotErrorIs(t, err, inbox.ErrUnavailable)
	assert.Equal(t, inbox.ReasonError, b.events.Last("failed").Reason)
	assert.Zero(t, b.effects())
}
