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
	p.due(t)
	require.Len(t, p.lanes[0].queue, 2)
	return p
}

// due has the relay take what is set aside.
func (p twoHeads) due(t *testing.T) {
	t.Helper()
	_, err := p.db.ExecContext(t.Context(), `UPDATE millrace_outbox SET due_at = 1 WHERE status = 1`)
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
			p.ends(t, c.sent, nil)
			p.flush(t.Context())
			p.ends(t, c.fails, Permanent(errRefused))
			p.flushed(<-p.flusher.done)
			p.looks(t)
			assert.Empty(t, ids(p.lanes[0].queue), "what waits for it is not sent")
			p.flushAll(t)
			p.looks(t)
			assert.Empty(t, ids(p.lanes[0].queue))
			p.due(t)
			assert.Equal(t, []int64{c.fails, 10}, p.drain(t))
		})
	}
}
