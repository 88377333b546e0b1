package gate_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var errFails = errors.New("the handler fails")

// model is what must be true of one consumer: each version of an aggregate is applied once,
// after the one before it, and only after it was delivered.
type model struct {
	delivered map[string]map[int64]bool
	applied   map[string]int64
}

func (m *model) check(b *bed, aggregate string, versions []int64) {
	require.GreaterOrEqual(b, int64(len(versions)), m.applied[aggregate], "what was applied stays applied")
	for i, v := range versions {
		require.Equal(b, int64(i+1), v, "versions of %s: %v", aggregate, versions)
		require.True(b, m.delivered[aggregate][v], "version %d of %s was never delivered", v, aggregate)
	}
	m.applied[aggregate] = int64(len(versions))
}

// Steps of a story, each taken from a byte.
const (
	stepDeliver = iota
	stepDeliverFail
	stepDeliverDie
	stepDouble
	stepWork
	stepWorkFail
	stepWorkDie
	stepLater
	steps
)

// story plays a stream of changes, in the order and with the failures that script says, and
// compares after each step what was applied with the model.
type story struct {
	*bed
	model   model
	proc    *proc
	pending []*message.Message // with the broker, in no order
	sums    []string
	size    int64
}

// play tells a story of its own consumer: stories share a database.
func (b *bed) play(number uint64, script []byte) {
	b.Helper()
	s := &story{bed: b, model: model{map[string]map[int64]bool{}, map[string]int64{}}, size: 4}
	for i := range 3 {
		aggregate := fmt.Sprintf("%d-%d", number, i)
		s.sums = append(s.sums, aggregate)
		s.model.delivered[aggregate] = map[int64]bool{}
		for v := range s.size {
			s.pending = append(s.pending, change(aggregate, v+1))
		}
	}
	s.proc = b.proc(fmt.Sprint("story ", number), millrace.VersionGate{})
	for len(script) > 0 {
		s.step(script[0])
		script = script[1:]
		s.look()
	}
	s.finish()
}

func (s *story) step(code byte) {
	rest := int(code / steps)
	switch code % steps {
	case stepDeliver:
		s.deliver(rest)
	case stepDeliverFail:
		s.proc.fail = true
		s.deliver(rest)
	case stepDeliverDie:
		s.proc.dieAt(1+rest/2, rest%2 == 0)
		s.deliver(len(s.pending) / 2)
	case stepDouble:
		if len(s.pending) > 0 {
			s.pending = append(s.pending, s.pending[rest%len(s.pending)])
		}
	case stepWork:
		s.proc.work()
	case stepWorkFail:
		s.proc.fail = true
		s.proc.work()
	case stepWorkDie:
		s.proc.dieAt(1+rest, rest%2 == 0)
		s.proc.work()
	case stepLater:
		s.later()
	}
	s.proc.fail, s.proc.last = false, 0
	if s.proc.dead() {
		_ = s.proc.pool.Close()
		s.proc = s.bed.proc(s.proc.consumer, millrace.VersionGate{})
	}
}

func (s *story) deliver(which int) {
	if len(s.pending) == 0 {
		return
	}
	i := which % len(s.pending)
	msg := s.pending[i]
	s.model.delivered[msg.Metadata[inbox.AggregateField]][int64(msg.Payload[6]-'0')] = true
	if s.proc.deliver(msg) {
		s.pending = append(s.pending[:i], s.pending[i+1:]...)
	}
}

func (s *story) look() {
	s.Helper()
	for _, aggregate := range s.sums {
		s.model.check(s.bed, aggregate, s.applied(aggregate))
	}
	require.Zero(s, s.stuck(), "held although the predecessor was applied")
}

// finish has everything delivered that is still with the broker, or in the table.
func (s *story) finish() {
	s.Helper()
	for range 100 {
		for range len(s.pending) {
			s.deliver(0)
		}
		s.later()
		if s.proc.work() == 0 && len(s.pending) == 0 {
			break
		}
	}
	s.look()
	for _, aggregate := range s.sums {
		require.Equal(s, s.size, s.model.applied[aggregate], "everything of %s was applied", aggregate)
	}
	s.nothingLeft()
}

func FuzzGateOrder(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(script(seed, 30))
	}
	f.Add([]byte{stepDeliver + 2*steps, stepDeliver + steps, stepDeliver, stepWork, stepWork})
	db := tuned(f, testdb.On(f, "sqlite")) // one for all stories, since making it takes longer than a story
	store := rig.NewStore(f, db.DB, inbox.Config{})
	require.NoError(f, store.Migrate(f.Context()))
	createApplied(f, db)
	var number atomic.Uint64
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if len(bytes) > 60 {
			t.Skip("long stories say no more than short ones")
		}
		(&bed{T: t, db: db, events: &rig.Events{}}).play(number.Add(1), bytes)
	})
}

func script(seed uint64, length int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	bytes := make([]byte, length)
	_, _ = rand.NewChaCha8(key).Read(bytes)
	return bytes
}

func TestStories(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newTunedBed, func(t *testing.T, b *bed) {
		for seed := range uint64(testdb.Rounds(3, 12)) {
			if t.Run(fmt.Sprint(seed), func(t *testing.T) {
				own := *b
				own.T = t
				own.play(seed, script(1000+seed, 40))
			}); t.Failed() {
				return
			}
		}
	}))
}
