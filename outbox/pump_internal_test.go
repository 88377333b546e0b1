package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newTestPump returns a pump that owns everything, and does nothing by itself. Its
// database is empty.
func newTestPump(t *testing.T, config RelayConfig) *pump {
	t.Helper()
	return newPumpOf(t, openTestRelay(t, config))
}

func newPumpOf(t *testing.T, r *Relay) *pump {
	t.Helper()
	l := newLease()
	l.extend(time.Now(), time.Hour)
	p := newPump(r, l, false)
	t.Cleanup(func() {
		for i := range p.lanes {
			close(p.lanes[i].runs)
		}
	})
	p.wanted = assignment{generation: 1, count: 1, mask: 1}
	p.shards = p.wanted
	p.reader.ready = true
	return p
}

func TestAPumpThatStopsSendsNothingMore(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	require.True(t, p.maySend())
	p.close()
	assert.False(t, p.maySend())
	p.closing.Store(false)
	p.lease.end()
	assert.False(t, p.maySend())
}
