package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/millrace-go/millrace/inbox/lease"
)

// obtain waits for the copies in this process, which costs the store nothing, and then for those in
// other processes. If no copy is in flight it creates no context for the wait.
func (l *leaseDelivery) obtain() error {
	c := l.consumer
	turn, taken := c.turns.Try(l.id.ID)
	asking := taken
	defer func() {
		if asking { // the store or an observer panicked
			l.turn.Fail()
		}
	}()
	if taken {
		l.turn = turn
		state, err := l.ask()
		if err != nil || state.Status != lease.Held {
			asking = false
			return l.settle(state, err)
		}
	}
	wait, cancel := context.WithTimeoutCause(l.ctx, c.config.Wait, ErrInProgress)
	defer cancel()
	if !taken {
		turn, settled, err := c.turns.Take(wait, l.id.ID, 0)
		if err != nil {
			return context.Cause(wait)
		}
		if settled {
			l.duplicate(ReasonWaited)
			return nil
		}
		l.turn, asking = turn, true
	}
	state, err := l.poll(wait)
	asking = false
	return l.settle(state, err)
}

// settle acts on the last answer of the store.
func (l *leaseDelivery) settle(state lease.State, err error) error {
	if err != nil {
		l.turn.Fail()
		return err
	}
	if state.Status == lease.Confirmed {
		l.turn.Settle(0)
		l.duplicate(ReasonConfirmed)
		return nil
	}
	l.start()
	return nil
}

// poll asks the store until this delivery has the key, the key is confirmed, or wait ends.
func (l *leaseDelivery) poll(wait context.Context) (lease.State, error) {
	for try := 0; ; try++ {
		state, err := l.ask()
		if err != nil || state.Status != lease.Held {
			return state, err
		}
		timer := time.NewTimer(nextLook(try, state.Remaining))
		select {
		case <-timer.C:
		case <-wait.Done():
			timer.Stop()
			return state, context.Cause(wait)
		}
	}
}

// nextLook returns the pause before the next question. It grows, has jitter, and ends soon after the
// lease of the holder.
func nextLook(try int, remaining time.Duration) time.Duration {
	const first, longest = 10 * time.Millisecond, 500 * time.Millisecond
	step := min(first<<min(try, 10), longest)
	step = step/2 + rand.N(step/2) //nolint:gosec // jitter needs no secrecy
	return min(step, max(remaining, 0)+time.Millisecond)
}

// ask asks the store once, unless the store is known to be down.
func (l *leaseDelivery) ask() (lease.State, error) {
	leases := l.consumer.leases
	pass, up := leases.outage.Enter(l.ctx)
	if err := l.ctx.Err(); err != nil {
		pass.Cancel()
		return lease.State{}, err
	}
	if !up {
		l.observe(KindOutage, leasesDown, ErrUnavailable)
		return lease.State{}, ErrUnavailable
	}
	l.began = time.Now()
	var state lease.State
	var err error
	asked := false
	defer func() {
		if !asked { // the store may have taken the key before the panic
			_ = l.giveBack(l.ctx)
		}
	}()
	pass.Tell(func() {
		state, err = leases.store.Acquire(l.ctx, l.id, l.token, l.consumer.config.Lease)
		if state.Evicted > 0 {
			leases.crowding(l.ctx, state.Evicted)
		}
	})
	asked = true
	switch {
	case err == nil:
		if pass.Up() {
			leases.log.Info("inbox: the store of the leases answers again", nil)
		}
		return state, nil
	case errors.Is(err, ErrUnavailable):
		pass.Tell(func() { l.observe(KindOutage, leasesDown, err) })
		if pass.Down(l.ctx) {
			l.log().Error("inbox: the store of the leases does not answer, deliveries are held back", err, nil)
		}
	default:
		pass.Cancel()
	}
	_ = l.giveBack(l.ctx) // perhaps the store took the key and only its answer was lost
	return lease.State{}, fmt.Errorf("take a lease: %w", err)
}

// start creates the context of the handler, and has the heartbeat extend the lease.
func (l *leaseDelivery) start() {
	l.fresh = true
	l.given = leaseContext{replayContext(l.ctx, l.msg), l}
	l.handler, l.cancel = context.WithCancelCause(&l.given)
	l.keep()
}

func (l *leaseDelivery) duplicate(reason string) {
	leases := l.consumer.leases
	l.handled()
	l.observeReplayed(replayDuplicate)
	if !leases.observers.wanted(KindDuplicate) && !leases.debug {
		return
	}
	e := l.event(reason)
	leases.observers.tell(l.ctx, KindDuplicate, e)
	if leases.debug {
		leases.log.Debug("inbox: duplicate, handler not run", e.fields())
	}
}

// observe tells the observers of l, with the reason.
func (l *leaseDelivery) observe(k Kind, reason string, err error) {
	if all := &l.consumer.leases.observers; all.wanted(k) {
		e := l.event(reason)
		e.Err = err
		all.tell(l.ctx, k, e)
	}
}

// observeReplayed tells the observers how a replayed message ended. It leaves out all others.
func (l *leaseDelivery) observeReplayed(reason string) {
	if _, is := replayed(l.msg); is {
		l.consumer.leases.observers.tellReplayed(l.ctx, l.log(), l.event(reason))
	}
}

// enter and leave let [Leases.Close] wait.
func (l *leaseDelivery) enter() bool {
	leases := l.consumer.leases
	if leases.owner != nil {
		leases.owner.warnUnattended()
	}
	return leases.work.enter()
}

func (l *leaseDelivery) leave() { l.consumer.leases.work.leave() }
