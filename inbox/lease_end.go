package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/database"
)

// Confirm ends a successful run: the key is kept, and copies of the message are answered
// without the handler. On an error the message must be nacked, although the handler
// succeeded; where it wraps [ErrLeaseLost], another process may have handled it too.
//
// If the handler produced messages, the key is kept only when the message is acked, which
// a router does after publishing them, and is freed when it is nacked: what was produced
// is not lost where publishing fails, and the handler then runs again.
func (l *Lease) Confirm(produced []*message.Message) error {
	l.over.Store(true)
	if len(produced) > 0 && !answered(l.msg) {
		if err := l.extendOnce(); errors.Is(err, ErrLeaseLost) {
			return l.doubt(err)
		}
		go l.outlive(l.confirmWhenAcked, func() { l.letGo(false) })
		return nil
	}
	defer l.letGo(false) // where the store panics
	if err := l.confirm(); err != nil {
		return l.doubt(err)
	}
	l.succeed()
	return nil
}

// confirmWhenAcked waits for the answer to a message, of which every message gets one. If
// its context ends first, the answer has the time of a lease to arrive.
func (l *Lease) confirmWhenAcked() {
	acked := false
	select {
	case <-l.msg.Acked():
		acked = true
	case <-l.msg.Nacked():
	case <-l.ctx.Done():
		last := time.NewTimer(l.consumer.config.Lease)
		defer last.Stop()
		select {
		case <-l.msg.Acked():
			acked = true
		case <-l.msg.Nacked():
		case <-last.C:
		}
	}
	if !acked {
		_ = l.Release(errUnpublished) // there is no caller left to return it to
		return
	}
	if err := l.confirm(); err != nil {
		_ = l.doubt(err) // logged and counted
		return
	}
	l.succeed()
}

var errUnpublished = errors.New("the handler succeeded, but what it returned was not published")

// confirm tells the store, again for a while if it does not answer: the handler ran.
func (l *Lease) confirm() error {
	leases, config := l.consumer.leases, &l.consumer.config
	ctx := context.WithoutCancel(l.ctx)
	sure := l.keepNoLonger()
	var giveUp time.Time
	for try := 0; ; try++ {
		err := leases.store.Confirm(ctx, l.id, l.token, config.retention())
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrLeaseLost):
			if try > 0 && time.Now().Before(sure) {
				return nil // an earlier try went through, and only its answer was lost
			}
			return err
		case try == 0:
			giveUp = time.Now().Add(afterwards)
		case time.Now().After(giveUp):
			return err
		}
		_ = database.Pause(ctx, try) // ctx does not end
	}
}

// succeed lets go of everything once the key is kept.
func (l *Lease) succeed() {
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

// letGo lets the next copy and the end of the store go on, once, before anyone is told.
func (l *Lease) letGo(settled bool) {
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

// doubt ends a run that succeeded, but whose key could not be kept.
func (l *Lease) doubt(cause error) error {
	defer l.letGo(false) // also where an observer panics
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

// Release ends a failed run and returns the error for the router. The key is free for the
// redelivery; if the store cannot be told, it is free when the lease ends.
func (l *Lease) Release(cause error) error {
	cause = sound(cause)
	l.over.Store(true)
	defer l.letGo(false) // also where the store or an observer panics
	l.keepNoLonger()
	if err := l.giveBack(l.ctx); err != nil {
		l.log().Error("inbox: a lease could not be released: copies of the message wait for it to end", err, nil)
	}
	return l.end(cause)
}

func (l *Lease) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	return l.consumer.leases.store.Release(ctx, l.id, l.token)
}

func (l *Lease) end(cause error) error {
	l.letGo(false)
	if a := deliveredBy(l.ctx); a != nil {
		a.failed(l.ctx, undecodable(l.msg, cause))
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
