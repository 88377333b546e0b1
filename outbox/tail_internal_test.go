package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// tailed returns a pump that reads behind 20.
func tailed(t *testing.T) *pump {
	t.Helper()
	p := newLeasedPump(t, RelayConfig{})
	p.rest()
	p.reader.tail = tail{on: true, from: 20, at: 20, rest: time.Now().Add(time.Hour)}
	p.reader.last, p.reader.floor.keyed = due, time.Now()
	return p
}

// It would cost a statement, and the look for its key takes it at once.
func TestTheTailLeavesToTheLookForItsKeyWhatThatFinds(t *testing.T) {
	p := tailed(t)
	p.put(t, "k", dialect.OutboxHeld, 10)
	p.put(t, "k", dialect.OutboxPending, 30)
	p.check(hash("k"))
	p.round(t, pending)
	assert.Empty(t, p.ledger.hold)
	assert.Empty(t, p.lanes[0].queue)
	p.rest()
	p.looks(t)
	assert.Equal(t, []int64{10, 30}, ids(p.lanes[0].queue))
}

// It is late where the relay could not look for long, as in an outage: past what others left behind since.
func TestTheLookForAKeyBeginsWithWhatTheTailLeft(t *testing.T) {
	for name, asked := range map[string]bool{"asked for before": true, "asked for by the tail": false} {
		t.Run(name, func(t *testing.T) {
			p := tailed(t)
			p.put(t, "k", dialect.OutboxPending, 50)
			p.round(t, pending)
			require.Equal(t, []int64{50}, ids(p.lanes[0].queue))
			p.put(t, "k", dialect.OutboxPending, 30, 60) // of one transaction
			if asked {
				p.check(hash("k"))
			}
			p.reader.last = due
			p.round(t, pending)
			p.reader.floor.marks = []mark{{time.Now().Add(-2 * horizon), 35}}
			p.rest()
			p.looks(t)
			assert.Equal(t, []int64{50, 30, 60}, ids(p.lanes[0].queue))
		})
	}
}

// The tail is not read again and again for what looks for keys take.
func TestTheTailRestsWhileKeysAreLookedFor(t *testing.T) {
	p := tailed(t)
	p.put(t, "k", dialect.OutboxPending, 30)
	p.check(hash("k"))
	p.round(t, pending)
	assert.False(t, p.reader.tail.next.IsZero())
	p.reader.tail.next = time.Now().Add(time.Minute)
	p.reader.rung()
	assert.False(t, p.reader.called(time.Now()))
	assert.True(t, p.reader.called(p.reader.tail.next))
	p.reader.sweepAt = time.Time{}
	assert.True(t, p.reader.called(time.Now()))
}

// Each wave of a run waits for the one before, and all of the lane for the run.
func TestALaneTakesOfAKeyWhatItTakesOfOthers(t *testing.T) {
	for name, of := range map[string]struct {
		other []string
		burst int
		want  int
	}{
		"alone":                  {nil, 1, 16},
		"beside one":             {[]string{"a"}, 1, 1},
		"beside one without key": {[]string{"", "", "", "", "", ""}, 1, 1},
		"beside another of many": {[]string{"a", "a", "a", "a", "a", "a"}, 1, 6},
		"in bursts":              {[]string{"a", "a", "a", "a", "a", "a"}, 2, 6},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPump(t, oneLane(RelayConfig{KeyBurst: of.burst}))
			for id := range int64(30) {
				p.inHand(mail(id+1, "hot", "t"))
			}
			for i, key := range of.other {
				p.inHand(mail(int64(i)+100, key, "t"))
			}
			picked := p.pick(&p.lanes[0])
			require.Len(t, picked, of.want+len(of.other))
		})
	}
}
