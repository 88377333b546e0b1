package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// twoHeads is a relay with two messages of a key that both were set aside: a transaction that was open
// when 8 failed has stored 5. 10 was stored after both.
type twoHeads struct{ *pump }

func newTwoHeads(t *testing.T) twoHeads {
	t.Helper()
	p := twoHeads{newLeasedPump(t, RelayConfig{})}
	p.put(t, "hot", dialect.OutboxRetry, 5, 8)
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
			p.away(0) // when the other becomes due
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
	p.due(t, 5, 8)
	p.ends(t, 5, Permanent(errRefused))
	assert.Empty(t, p.deliver(t))
	p.flushAll(t)
	p.looks(t)
	assert.Empty(t, ids(p.lanes[0].queue))
	p.due(t, 5)
	assert.Equal(t, []int64{5, 8, 10}, p.drain(t))
}
