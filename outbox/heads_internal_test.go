package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// twoHeads is a relay with a message of a key that was set aside, 8, and one behind it. Tests add 5, which a
// transaction stored that was open when 8 failed.
type twoHeads struct{ *pump }

func newTwoHeads(t *testing.T) twoHeads {
	t.Helper()
	p := twoHeads{newLeasedPump(t, RelayConfig{})}
	p.put(t, "hot", dialect.OutboxRetry, 8)
	p.put(t, "hot", dialect.OutboxHeld, 10)
	p.rest()
	return p
}

// due has the relay take those messages that are set aside, and no others.
func (p twoHeads) due(t *testing.T, ids ...int64) {
	t.Helper()
	_, err := p.db.ExecContext(t.Context(), `
		UPDATE millrace_outbox SET due_at = CASE WHEN id IN (SELECT value FROM json_each(?)) THEN 1 ELSE 1 << 60 END
		WHERE status = 1`, dialect.IDs(ids))
	require.NoError(t, err)
	p.reader.dueAt, p.reader.last = time.Now(), keys
	p.read(t.Context())
	r := p.await(t)
	require.Equal(t, due, r.kind)
	p.took(r)
}

// ends sends one of the messages in hand alone, or has it fail.
func (p twoHeads) ends(t *testing.T, id int64, err error) {
	t.Helper()
	lane := &p.lanes[0]
	all := lane.queue
	lane.queue = []*letter{p.window[id]}
	r := p.away(0)
	for _, l := range all {
		if l.id != id {
			lane.queue = append(lane.queue, l)
		}
	}
	r.fate(id, err)
	p.settle(t.Context(), r)
}

// TestTheEndOfAHeadOpensNoKeyWithAnother: one head goes out, which opens the key, while the other fails and is not set aside
// yet. The message behind them waits for both.
func TestTheEndOfAHeadOpensNoKeyWithAnother(t *testing.T) {
	for name, c := range map[string]struct{ sent, fails int64 }{
		"the greater": {sent: 8, fails: 5},
		"the smaller": {sent: 5, fails: 8},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTwoHeads(t)
			p.due(t, 8)
			p.away(0) // when the other is stored
			p.put(t, "hot", dialect.OutboxRetry, 5)
			p.due(t, 5)
			require.Len(t, p.window, 2)
			p.ends(t, c.sent, nil)
			p.flush(t.Context())
			p.ends(t, c.fails, Permanent(errRefused))
			p.flushed(<-p.flusher.done)
			p.looks(t)
			assert.Empty(t, ids(p.lanes[0].queue), "what waits for it is not sent")
			p.flushAll(t)
			p.due(t, 5, 8)
			assert.Equal(t, []int64{c.fails, 10}, p.drain(t))
		})
	}
}

// An operator had both tried again: the later one waits for the earlier one, as what is no head does.
func TestAHeadWaitsForAnEarlierOneOfItsKey(t *testing.T) {
	p := newTwoHeads(t)
	p.put(t, "hot", dialect.OutboxRetry, 5)
	p.due(t, 5, 8)
	p.ends(t, 5, Permanent(errRefused))
	assert.Empty(t, p.deliver(t))
	p.flushAll(t)
	p.looks(t)
	assert.Empty(t, ids(p.lanes[0].queue))
	p.due(t, 5)
	assert.Equal(t, []int64{5, 8, 10}, p.drain(t))
}

// It is due while an earlier one is on its way, which was stored late: what is behind it waits no longer than for both.
func TestAHeadThatIsHeldBackOpensItsKey(t *testing.T) {
	p := newTwoHeads(t)
	p.check(hash("hot"))
	p.looks(t)
	require.Equal(t, int64(8), p.blocked[hash("hot")].head)
	p.put(t, "hot", dialect.OutboxPending, 5)
	p.reads(t)
	p.rest()
	p.due(t, 8)
	require.Equal(t, []int64{8}, ids(p.ledger.hold))
	assert.Equal(t, []int64{5}, p.deliver(t))
	p.flushAll(t)
	p.looks(t)
	assert.Equal(t, []int64{8, 10}, ids(p.lanes[0].queue))
}

// A transaction was open for long, and has stored more than fits before a message that is parked.
func TestWhatIsHeldBackBeforeAHeadDoesNotWaitForIt(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	p.put(t, "hot", dialect.OutboxParked, 8)
	p.check(hash("hot"))
	p.rest()
	p.looks(t)
	p.put(t, "hot", dialect.OutboxPending, 1, 2, 3, 4, 5)
	p.reads(t)
	p.rest()
	var sent []int64
	for len(sent) < 5 {
		sent = append(sent, p.deliver(t)...)
		p.flushAll(t)
		p.looks(t)
	}
	assert.Equal(t, []int64{1, 2, 3, 4, 5}, sent)
}

// After a failover another message has the id of a head, or of one in hand.
func TestAnIDThatComesAgainIsAnotherMessage(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "other", dialect.OutboxParked, 5)
	p.put(t, "hot", dialect.OutboxHeld, 8)
	p.blocked[hash("hot")] = block{head: 5}
	p.reader.sweepAt = time.Time{}
	p.reads(t)
	p.rest()
	p.looks(t)
	require.Equal(t, []int64{8}, ids(p.lanes[0].queue))

	p.away(0)
	p.db.MustExec(`UPDATE millrace_outbox SET created_at = created_at + 1 WHERE id = 8`)
	p.put(t, "hot", dialect.OutboxHeld, 9)
	p.put(t, "hot", dialect.OutboxPending, 10)
	p.check(hash("hot"))
	p.looks(t)
	assert.Empty(t, ids(p.lanes[0].queue), "nothing goes out before the new one")
}
