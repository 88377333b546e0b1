package outbox_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// killing is a relay that is killed at a point, perhaps when it was told to stop before.
type killing struct {
	stop, end relayproc.Point
	skip      int
	fails     bool // a message fails once, so that others are held back
	former    bool // the shards are those of an earlier release
	beats     bool // three times a lease, so that is a short one
	sends     bool // the broker has something by then
}

var killings = []killing{
	{stop: relayproc.AfterJoin},
	{stop: relayproc.AfterClaim},
	{stop: relayproc.BeforeLoad},
	{stop: relayproc.AfterRead},
	{stop: relayproc.BeforePublish},
	{stop: relayproc.MidPublish, sends: true},
	{stop: relayproc.AfterPublish, sends: true},
	{stop: relayproc.BeforeWriteOff, sends: true},
	{stop: relayproc.AfterWriteOff, sends: true},
	{stop: relayproc.BeforeRelease, fails: true, sends: true},
	{stop: relayproc.AfterHold, fails: true, sends: true},
	{stop: relayproc.AfterPostpone, fails: true, sends: true},
	{stop: relayproc.BeforeBeat, beats: true},
	{stop: relayproc.AfterBeat, skip: 1, beats: true},
	{stop: relayproc.MidReplace, former: true},
	{stop: relayproc.AfterReplace},
	{end: relayproc.MidPublish, stop: relayproc.AfterPublish, sends: true},
	{end: relayproc.MidPublish, stop: relayproc.BeforeWriteOff, sends: true},
	{end: relayproc.AfterRead, stop: relayproc.BeforeLeave},
	{end: relayproc.AfterRead, stop: relayproc.MidLeave},
}

func (k killing) String() string {
	if k.end != "" {
		return fmt.Sprintf("%s, told to end %s", k.stop, k.end)
	}
	return string(k.stop)
}

// A relay is killed at each boundary of its work; the next one takes over, and is killed at
// the next boundary. All that was committed is sent, in order, and nothing else is.
//
// The lease of who is dead is ended by hand, to save time; it ends by itself in the tests
// under load.
func TestKilledAtEveryBoundary(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	testdb.Some(t, 1, testdb.With(newTown, func(t *testing.T, o *town) {
		o.settings.Lease = 6 * time.Second
		again := 0 // messages that may be sent once more
		for n, k := range killings {
			o.store(6, 3*n)
			o.store(6, 3*n+2)
			if k.former {
				o.former(8)
			}
			again += o.kill(fmt.Sprintf("relay %d", n), k)
		}
		last := relayproc.Start(t, o.settings)
		duplicates := o.check()
		last.Close()
		assert.Positive(t, duplicates, "the kills came too early")
		assert.LessOrEqual(t, duplicates, again)
	}))
}

// kill starts a relay, kills it where it stops, and returns how many messages the broker
// has of which the outbox does not know.
func (o *town) kill(name string, k killing) int {
	o.Helper()
	before := o.broker.total()
	s := o.settings
	if k.fails {
		s.Lanes = 1 // so that others are in the same call
		o.broker.refusing(o.twice())
		defer o.broker.refusing(nil)
	}
	if k.beats {
		s.Lease = 6 * time.Second
	}
	s.Name, s.Stop, s.Skip, s.End = name, k.stop, k.skip, k.end
	p := relayproc.Start(o, s)
	require.EqualValues(o, k.stop, p.Await(process.At, 1)[0].Point)
	o.dies(p)
	o.db.Do(o, `UPDATE millrace_outbox_relays SET until = 1`)
	sent, unwritten := o.broker.total()-before, o.unwritten()
	o.Logf("killed %s: %d sent, %d of all sent and not written off", k, sent, unwritten)
	if k.sends {
		assert.Positive(o, sent, "killed %s", k)
	}
	return unwritten
}

// twice refuses the first message with a key twice: in a call with others, and by itself. It takes none that it refused
// in an earlier relay: what is behind that one is held back already.
func (o *town) twice() func(string, *message.Message) error {
	refused, times := "", 0
	return func(_ string, msg *message.Message) error {
		if refused == "" && msg.Metadata.Get("key") != "" && !o.refused[msg.UUID] {
			refused = msg.UUID
			o.refused[refused] = true
		}
		if msg.UUID != refused || times == 2 {
			return nil
		}
		times++
		return errors.New("not this one, not yet")
	}
}

// Two services, each with business transactions, of which a third roll back, and a relay,
// are killed in turn at moments that nobody chose.
func TestKilledUnderLoad(t *testing.T) {
	testdb.Turn(t, 1, loads)
	t.Parallel()
	const workers = 3
	kills := testdb.Rounds(3, 10)
	testdb.Some(t, 1, testdb.With(newTown, func(t *testing.T, o *town) {
		o.settings.Lease = 6 * time.Second
		o.settings.Traffic = workers
		started := 0
		var all []*process.Process
		service := func() *process.Process {
			s := o.settings
			started++
			s.Name = fmt.Sprintf("service %d", started)
			all = append(all, relayproc.Start(t, s))
			return all[len(all)-1]
		}
		services := []*process.Process{service(), service()}
		again := 0
		for n := range kills {
			sent := o.broker.total() + 50 + rand.IntN(150)
			rig.Eventually(o, "messages are sent", func() bool { return o.broker.total() >= sent })
			o.dies(services[n%2])
			again += o.unwritten()
			services[n%2] = service()
		}
		for _, p := range services {
			p.Close()
		}
		o.settings.Traffic = 0
		last := service()
		duplicates := o.check()
		last.Close()
		for _, p := range all { // one that lost its lease to a busy machine may send again all that it had in hand
			for _, lost := range []string{"the relay starts over", "were changed by someone else"} {
				again += 2 * 500 * strings.Count(p.Said(), lost)
			}
		}
		assert.LessOrEqual(t, duplicates, again)
	}))
}
