package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// tailed returns a pump that reads behind 20, since some time.
func tailed(t *testing.T, since time.Duration) *pump {
	t.Helper()
	p := newLeasedPump(t, RelayConfig{})
	p.onTail(since)
	return p
}

func (p *pump) onTail(since time.Duration) {
	const from = 20
	now := time.Now()
	p.rest()
	p.reader.tail = tail{on: true, from: from, at: from, rest: now.Add(time.Hour)}
	p.reader.floor = floor{keyed: now, marks: []mark{{now.Add(-since), from}}}
	p.reader.last = due
}

// What was open when the reading of the tail began has ended by then: so a look there finds all that there is.
func TestTheTailIsReadAsTheWholeTableWhenNoTransactionIsLeftOfBefore(t *testing.T) {
	for name, of := range map[string]struct {
		since time.Duration
		want  []int64
	}{
		"just begun": {time.Second, []int64{30}},
		"for long":   {2 * horizon, []int64{30, 31}},
	} {
		t.Run(name, func(t *testing.T) {
			p := tailed(t, of.since)
			p.put(t, "k", dialect.OutboxPending, 30)
			p.round(t, pending)
			p.put(t, "k", dialect.OutboxPending, 31)
			p.reader.last = due
			p.round(t, pending)
			assert.Equal(t, of.want, ids(p.lanes[0].queue))
			p.rest()
			p.looks(t)
			assert.Equal(t, []int64{30, 31}, ids(p.lanes[0].queue), "the look for its key finds the other")
		})
	}
}

// It would cost a statement, and the look for its key takes it at once.
func TestTheTailLeavesToTheLookForItsKeyWhatThatFinds(t *testing.T) {
	p := tailed(t, time.Second)
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

// The tail is not read again and again for what looks for keys take.
func TestTheTailRestsWhileKeysAreLookedFor(t *testing.T) {
	p := tailed(t, time.Second)
	p.put(t, "k", dialect.OutboxPending, 30)
	p.check(hash("k"))
	p.round(t, pending)
	assert.True(t, p.reader.tail.next.After(time.Now().Add(-time.Second)))
	p.reader.tail.next = time.Now().Add(time.Minute)
	p.reader.rung()
	assert.False(t, p.reader.called(time.Now()))
	assert.True(t, p.reader.called(p.reader.tail.next))
	p.reader.sweepAt = time.Time{}
	assert.True(t, p.reader.called(time.Now()))
}

// A shard that comes has messages behind where the tail is read by now.
func TestTheTailOfAShardThatComesIsReadFromItsBeginning(t *testing.T) {
	p := tailed(t, 2*horizon)
	p.lose(t, hash("k"), false)
	p.put(t, "k", dialect.OutboxPending, 25)
	p.onTail(2 * horizon)
	p.reader.floor.mark(time.Now().Add(-2*horizon+time.Second), 28)
	p.assign(t.Context(), assignment{generation: 1, count: 2, mask: 3})
	p.rest()
	p.reader.last = due
	p.round(t, pending)
	assert.Equal(t, []int64{25}, ids(p.lanes[0].queue))
}

// Each wave of a run waits for the one before, and all of the lane for the run.
func TestALaneTakesOfAKeyWhatItTakesOfOthers(t *testing.T) {
	for name, of := range map[string]struct {
		other []string
		burst int
		want  int
	}{
		"alone":                  {nil, 1, 16},
		"beside one":             {[]string{"a"}, 1, 4},
		"beside one without key": {[]string{"", "", "", "", "", ""}, 1, 4},
		"beside another of many": {[]string{"a", "a", "a", "a", "a", "a"}, 1, 6},
		"in bursts":              {[]string{"a", "a", "a", "a", "a", "a"}, 2, 8},
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
