package tests_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// busy is a service after a moment in which the database was away. The handler of one consumer runs since before, and has its
// only slot. Its next message would ask the database first, and waits for the slot.
type busy struct {
	*bed
	pool            *faults.Faults
	orders, reports message.HandlerFunc
	next            *message.Message
	running         <-chan error
	waiting         <-chan error
	goOn            func()
}

func newBusy(t *testing.T, name string) *busy {
	t.Helper()
	b := &busy{bed: newBed(t, testdb.On(t, name)), next: newMessage("next")}
	b.pool = faults.Open(t, b.db)
	store := b.newStore(b.pool.DB, inbox.Config{})
	halted, entered, goOn := rig.Halted(effect)
	b.goOn = goOn
	t.Cleanup(goOn)
	long := func(i *millrace.Inbox) { i.Timeout, i.TwinWait = 2*rig.Patience, rig.Patience }
	b.orders = b.inbox(effect, on(store), long)
	b.reports = b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "long" {
			return halted(msg)
		}
		return effect(msg)
	}, on(store), long, func(i *millrace.Inbox) { i.Consumer, i.MaxInFlight = "reports", 1 })
	must(t, b.orders, newMessage("before"))
	b.running = rig.Handle(b.reports, newMessage("long"))
	rig.Within(t, entered, "the handler of the long message")

	b.pool.Set(faults.Plan{Before: faults.Lose("INTO millrace_claims")})
	rig.MustFail(t, b.orders, newMessage("meets it"), inbox.ErrUnavailable)
	asks := make(chan struct{})
	ask := sync.OnceFunc(func() { close(asks) })
	b.pool.Set(faults.Plan{Before: faults.At("millrace_consumers", func() error { ask(); return nil })})
	b.waiting = rig.Handle(b.reports, b.next)
	rig.Within(t, asks, "the next message registers its consumer, which comes before the wait for a slot")
	return b
}

// onServers runs body on the databases with more than one slot: SQLite has one, for all consumers.
func onServers(t *testing.T, body func(t *testing.T, b *busy)) {
	t.Parallel()
	for _, name := range []string{"postgres", "mysql"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body(t, newBusy(t, name))
		})
	}
}

// While a delivery waits for a slot, others find out that the database is back.
func TestAnOutageEndsThoughAConsumerIsBusy(t *testing.T) {
	onServers(t, func(t *testing.T, b *busy) {
		msg := newMessage("another consumer's")
		rig.Eventually(b, "the other consumer goes on", func() bool {
			_, err := b.orders(again(msg))
			return err == nil
		})
		b.goOn()
		require.NoError(t, rig.Within(t, b.running, "the end of the long message"))
		require.NoError(t, rig.Within(t, b.waiting, "the end of the next message"))
		assert.Equal(t, 1, b.effectsOf(b.next.UUID))
	})
}

// A delivery that gets its slot before others have found out asks the database itself.
func TestADeliveryThatWaitedForASlotEndsTheOutage(t *testing.T) {
	onServers(t, func(t *testing.T, b *busy) {
		b.goOn()
		require.NoError(t, rig.Within(t, b.running, "the end of the long message"))
		require.NoError(t, rig.Within(t, b.waiting, "the end of the next message"))
		assert.Equal(t, 1, b.effectsOf(b.next.UUID))
		must(t, b.orders, newMessage("another consumer's"))
	})
}

// A delivery that gets its slot while another one asks the database is held back for its answer, as any other is, and has no slot
// meanwhile.
func TestADeliveryThatWaitedForASlotIsNoSecondProbe(t *testing.T) {
	onServers(t, func(t *testing.T, b *busy) {
		asks, answer := make(chan struct{}), make(chan struct{})
		ask := sync.OnceFunc(func() { close(asks) })
		b.pool.Set(faults.Plan{Before: faults.At("INTO millrace_claims", func() error {
			ask()
			<-answer
			return nil
		})})
		other := newMessage("another consumer's")
		probe := rig.Go(func() error {
			for {
				if _, err := b.orders(again(other)); !errors.Is(err, inbox.ErrUnavailable) {
					return err
				}
			}
		})
		rig.Within(t, asks, "a delivery of the other consumer asks")
		b.goOn()
		require.NoError(t, rig.Within(t, b.running, "the end of the long message"))
		require.ErrorIs(t, rig.Within(t, b.waiting, "the end of the next message"), inbox.ErrUnavailable)
		close(answer)
		require.NoError(t, rig.Within(t, probe, "the answer"))
		must(t, b.reports, again(b.next))
		assert.Equal(t, 1, b.effectsOf(b.next.UUID))
	})
}
