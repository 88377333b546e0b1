package outbox

import (
	"database/sql"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// sweeps is a pump that looks for new messages alone.
type sweeps struct {
	*pump
	t *testing.T
}

func newSweeps(t *testing.T) sweeps {
	return sweeps{newPumpOf(t, newTestRelay(t, oneLane(RelayConfig{}))), t}
}

func (s sweeps) next() *reading {
	s.reader.last, s.reader.lookAt, s.reader.hungry = due, time.Time{}, true // pending comes next
	s.read(s.t.Context())
	return s.await(s.t)
}

// ends has a sweep end that took some time.
func (s sweeps) ends(took time.Duration, err error) {
	s.reader.sweepAt = time.Time{}
	r := s.next()
	require.True(s.t, r.aside)
	r.began, r.err = time.Now().Add(-took), err
	s.took(r)
}

// rests reports whether the next sweep is far.
func (s sweeps) rests() bool { return time.Until(s.reader.sweepAt) > time.Minute }

func read(ago time.Duration, id int64) mark { return mark{time.Now().Add(-ago), id} }

// Rows that are deleted cost a sweep time while somebody's transaction can still see them: new
// messages are read all the same.
func TestSweepsThatTakeLongRest(t *testing.T) {
	const long = 20 * time.Second
	s := newSweeps(t)
	s.ends(-time.Second, nil)
	s.ends(long, nil)
	assert.False(t, s.rests(), "it may have waited for a connection")
	s.reader.floor.marks = []mark{read(10*time.Second, 7)}
	require.Equal(t, int64(7), s.reader.floor.id(time.Now()))
	s.ends(long, nil)
	assert.True(t, s.rests())
	assert.Zero(t, s.reader.floor.id(time.Now()), "few transactions should have to wait for a sweep")
	s.ends(-time.Second, nil)
	assert.False(t, s.rests())
}

// As long as each sweep is cut off, looks begin at the floor, whatever else fails.
func TestSweepsThatAreCutOffRest(t *testing.T) {
	const long = 20 * time.Second
	s := newSweeps(t)
	s.reader.at = math.MaxInt64
	s.reader.floor.marks = []mark{read(time.Hour, 7), read(65*time.Second, 8), read(35*time.Second, 9)}
	s.ends(long, errDatabase)
	s.ends(long, errDatabase)
	assert.True(t, s.rests())
	r := s.next()
	assert.False(t, r.aside)
	assert.Equal(t, int64(8), r.after, "another server may have taken over, without the ids of the last half a minute")
	r.began, r.err = time.Now(), errDatabase
	s.took(r)
	s.ends(long, errDatabase)
	r = s.next()
	assert.False(t, r.aside)
	assert.Equal(t, int64(8), r.after, "also once another look has failed")
	s.took(r)
	s.took(&reading{kind: due, began: time.Now(), err: errDatabase})
	s.ends(-time.Second, nil) // of another server, maybe
	s.ends(long, errDatabase)
	assert.Zero(t, s.reader.floor.id(time.Now()), "nothing has been read since")
}

// Whatever a sweep finds out before it is cut off counts: an operator's retry, and a head that was discarded.
func TestASweepThatIsCutOffTellsOfRetries(t *testing.T) {
	s := newSweeps(t)
	s.reader.dueAt = time.Time{}
	s.took(&reading{
		kind: pending, aside: true, epoch: s.reader.epoch, began: time.Now().Add(-time.Minute), err: errDatabase,
		nextDue: sql.NullInt64{Valid: true},
	})
	assert.False(t, s.reader.dueAt.IsZero())
}

// As long as sweeps are cut off, another look that is too must not have the next one be a sweep.
func TestALookThatIsCutOffLikeSweepsForcesNone(t *testing.T) {
	s := newSweeps(t)
	s.reader.at = math.MaxInt64
	s.reader.floor.marks = []mark{read(time.Hour, 7)}
	s.ends(20*time.Second, errDatabase)
	s.ends(20*time.Second, errDatabase)
	s.took(&reading{kind: keys, epoch: s.reader.epoch, began: time.Now().Add(-20 * time.Second), err: errDatabase})
	r := s.next()
	assert.False(t, r.aside)
	assert.Equal(t, int64(7), r.after)
}

// While sweeps are rare, looks begin far enough back for keys: the first keyed message needs no sweep.
func TestTheFirstKeyedMessageWhileSweepsAreRare(t *testing.T) {
	s := newSweeps(t)
	s.reader.floor.rare = true
	s.took(&reading{kind: pending, after: 7, limit: 10, letters: []*letter{mail(9, "k", "t")}, shards: s.shards, began: time.Now()})
	assert.Len(t, s.window, 1)
}

// Else it would wait for a sweep, and sweeps may rest.
func TestALookForWhatIsDueTellsWhatIsDueNext(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "a", dialect.OutboxRetry, 1)
	p.put(t, "b", dialect.OutboxRetry, 2)
	p.db.MustExec(`UPDATE millrace_outbox SET due_at = CASE id WHEN 1 THEN 1 ELSE ? END`, time.Now().Add(time.Hour).UnixMicro())
	p.reader.dueAt, p.reader.last = time.Now(), keys
	p.read(t.Context())
	r := p.await(t)
	require.Equal(t, due, r.kind)
	p.took(r)
	require.Len(t, p.window, 1)
	assert.WithinDuration(t, time.Now().Add(time.Hour), p.reader.dueAt, 10*time.Minute)
}

// A walk rests like a sweep, which passes as many deleted rows.
func TestAWalkThatIsCutOffRests(t *testing.T) {
	s := newSweeps(t)
	r := s.next()
	require.True(t, r.walks)
	r.began, r.walkErr = time.Now().Add(-lookTimeout), errDatabase
	s.took(r)
	assert.Greater(t, time.Until(s.reader.walk.at), time.Minute)
}

// While sweeps rest, neither a backlog nor the tail is left alone for longer than before.
func TestTheTailDoesNotRestWithTheSweeps(t *testing.T) {
	s := newSweeps(t)
	for id := range int64(20) {
		s.inHand(mail(100+id, "", "t")) // others are on their way
	}
	r := s.next()
	require.True(t, r.aside)
	behind := func(id int64) *letter {
		l := mail(id, "hot", "t")
		l.behind = 1 // which is not in hand
		return l
	}
	r.letters, r.limit, r.highest, r.began = []*letter{behind(2), behind(3)}, 2, 3, time.Now().Add(-20*time.Second)
	s.took(r)
	require.True(t, s.reader.tail.on)
	assert.LessOrEqual(t, time.Until(s.reader.tail.rest), sweepEvery)
	late := &reading{kind: pending, tail: true, limit: 10, letters: []*letter{behind(4)}, began: time.Now().Add(-5 * time.Second)}
	s.tailPaged(late, time.Now(), 1)
	assert.LessOrEqual(t, time.Until(s.reader.tail.next), sweepEvery)
}

// A sweep of before must not put off that of shards which came meanwhile.
func TestASweepThatFailsAfterNewShardsCame(t *testing.T) {
	s := newSweeps(t)
	r := s.next()
	require.True(t, r.aside)
	s.shards = 1
	s.assign(t.Context(), allShards)
	r.began, r.err = time.Now().Add(-lookTimeout), errDatabase
	s.reader.swept = lookTimeout
	s.took(r)
	assert.Zero(t, s.reader.sweepAt)
}
