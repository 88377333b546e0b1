package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/internal/database"
)

// finish ends a successful run: it confirms the key, so that copies of the message are acked without
// the handler. After an error the message must be nacked although the handler succeeded; if the error
// wraps [ErrLeaseLost], another process may have handled the message too.
//
// If the handler produced messages, the key is confirmed when the message is acked, which a router
// does after publishing them, and freed when it is nacked: if publishing fails, the handler runs
// again, and the produced messages are not lost.
func (l *leaseDelivery) finish(produced []*message.Message) error {
	l.over.Store(true)
	if len(produced) > 0 && !closed(l.msg.Acked()) {
		if err := l.extendOnce(); errors.Is(err, ErrLeaseLost) {
			return l.doubt(err)
		}
		l.handled()
		go l.outlive(l.confirmWhenAcked, func() { l.letGo(false) })
		return nil
	}
	defer l.letGo(false) // if the store panics
	if err := l.confirm(); err != nil {
		return l.doubt(err)
	}
	l.handled()
	l.succeed()
	return nil
}

// confirmWhenAcked waits until the message is acked or nacked. That happens to every message but a copy
// that a middleware outside hands on: the router answers the message itself.
func (l *leaseDelivery) confirmWhenAcked() {
	acked, answered := l.answer()
	if !answered {
		l.log().Error("inbox: a message was handled and then neither acked nor nacked, so its key is free again", errNoAnswer, nil)
	}
	if !acked {
		_ = l.release(errUnpublished) // no caller is left to return it to
		return
	}
	if err := l.confirm(); err != nil {
		_ = l.doubt(err) // logged and counted
		return
	}
	l.succeed()
}

// noAnswerFor bounds the wait for an answer to a message whose context cannot end, such as one that
// message.Message.Copy made.
const noAnswerFor = 5 * time.Minute

// answer waits until the message is acked or nacked. If its context ends first, answer waits for the
// time of one lease more.
func (l *leaseDelivery) answer() (acked, answered bool) {
	ctx := l.ctx
	if ctx.Done() == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, noAnswerFor)
		defer cancel()
	}
	select {
	case <-l.msg.Acked():
		return true, true
	case <-l.msg.Nacked():
		return false, true
	case <-ctx.Done():
	}
	last := time.NewTimer(l.consumer.config.Lease)
	defer last.Stop()
	select {
	case <-l.msg.Acked():
		return true, true
	case <-l.msg.Nacked():
		return false, true
	case <-last.C:
		return false, false
	}
}

var errUnpublished = errors.New("the handler succeeded, but what it returned was not published")

// confirm tells the store that the handler succeeded. It tries again for a while if the store does
// not answer; while another writer is in the way, for as long as nobody else can take the key.
func (l *leaseDelivery) confirm() error {
	sure := l.keepNoLonger()
	var giveUp time.Time
	for try := 0; ; try++ {
		err := l.confirmOnce(sure)
		if try > 0 && errors.Is(err, ErrLeaseLost) && lasts(sure) {
			err = l.confirmAgain(sure, err)
		}
		waits := lasts(sure) && l.consumer.leases.owner.heldUp(err)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrLeaseLost):
			return err
		case try == 0:
			giveUp = time.Now().Add(afterwards)
		case time.Now().After(giveUp) && !waits:
			return err
		}
		_ = database.Pause(context.WithoutCancel(l.ctx), try) // no error: this context never ends
	}
}

func (l *leaseDelivery) confirmOnce(sure time.Time) error {
	leases, ctx := l.consumer.leases, context.WithoutCancel(l.ctx)
	if owner := leases.owner; owner != nil && owner.dialect.OneWriter && sure.After(time.Now().Add(afterwards)) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, sure)
		defer cancel()
	}
	return leases.store.Confirm(ctx, l.id, l.token, l.consumer.config.retention())
}

// confirmAgain finds out whether an earlier try succeeded and only its answer was lost. It confirms a key
// that the store has forgotten. An answer counts only while nobody else can have taken the key.
func (l *leaseDelivery) confirmAgain(sure time.Time, lost error) error {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(l.ctx), sure)
	defer cancel()
	store, config := l.consumer.leases.store, &l.consumer.config
	state, err := store.Acquire(ctx, l.id, l.token, config.Lease)
	switch {
	case !lasts(sure):
		return lost
	case err != nil:
		return err
	case state.Status == lease.Confirmed:
		return nil
	case state.Status == lease.Taken:
		return store.Confirm(ctx, l.id, l.token, config.retention())
	}
	return lost
}

// lasts reports whether t is still ahead, by the monotonic clock and by that of the machine, which goes on
// while it is suspended.
func lasts(t time.Time) bool {
	now := time.Now()
	return now.Before(t) && now.Round(0).Before(t.Round(0))
}

// succeed ends the delivery after its key was confirmed.
func (l *leaseDelivery) succeed() {
	l.letGo(true)
	if leases := l.consumer.leases; leases.observers.wanted(KindCompleted) || leases.debug {
		e := l.event("confirmed")
		e.Duration = time.Since(l.began)
		leases.observers.tell(l.ctx, KindCompleted, e)
		if leases.debug {
			leases.log.Trace("inbox: message handled", e.fields())
		}
	}
	l.observeReplayed(replayRan)
}

// letGo lets copies of the message and [Leases.Close] go on. It does so once, before observers are
// told.
func (l *leaseDelivery) letGo(settled bool) {
	if l.gone {
		return
	}
	l.gone = true
	l.cancel(nil)
	if settled {
		l.turn.Settle(0)
	} else {
		l.turn.Fail()
	}
	l.leave()
}

// doubt ends a successful run whose key could not be confirmed.
func (l *leaseDelivery) doubt(cause error) error {
	defer l.letGo(false) // also if an observer panics
	if errors.Is(cause, ErrLeaseLost) {
		cause = fmt.Errorf("the handler succeeded after its lease had ended: %w", cause)
	} else {
		cause = fmt.Errorf("the handler succeeded, but this could not be recorded, so it may run again: %w", cause)
	}
	l.log().Error("inbox: possible double effect", cause, nil)
	if all := &l.consumer.leases.observers; all.wanted(KindDoubleEffect) {
		e := l.event(ReasonNotConfirmed)
		e.Err, e.Duration = cause, time.Since(l.began)
		all.tell(l.ctx, KindDoubleEffect, e)
	}
	return l.end(cause)
}

// release ends a failed run and returns the error for the router. It frees the key for the
// redelivery; if the store does not answer, the key is free when the lease ends.
func (l *leaseDelivery) release(cause error) error {
	cause = sound(cause)
	l.over.Store(true)
	defer l.letGo(false) // also if the store or an observer panics
	l.keepNoLonger()
	if err := l.giveBack(l.ctx); err != nil {
		l.log().Error("inbox: a lease could not be released: copies of the message wait for it to end", err, nil)
	}
	err := l.end(cause)
	l.consumer.pace.doubt(l.ctx, cause)
	return err
}

func (l *leaseDelivery) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	return l.consumer.leases.store.Release(ctx, l.id, l.token)
}

func (l *leaseDelivery) end(cause error) error {
	l.letGo(false)
	if a := deliveredBy(l.ctx); a != nil && !closed(l.msg.Acked()) { // else the message counts as handled by now
		a.failed(l.ctx, undecodable(l.msg, cause), l.consumer.leases.observers.newRun(l.ctx, l.began))
	}
	if leases := l.consumer.leases; leases.observers.wanted(KindFailed) || leases.debug {
		e := l.event(reasonOf(cause))
		e.Err, e.Duration = cause, time.Since(l.began)
		leases.observers.tell(l.ctx, KindFailed, e)
		if leases.debug {
			leases.log.Debug("inbox: handler failed, its lease was released", e.fields())
		}
	}
	return l.fail(cause)
}
