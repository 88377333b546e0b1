package inbox

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/dialect"
)

// turnAway ends a delivery whose handler the version gate did not run.
func (cl *claim) turnAway(produced []*message.Message) error {
	if len(produced) > 0 && cl.verdict != postponed {
		return cl.Rollback(errProducedUnseen)
	}
	if cl.verdict == postponed {
		return cl.giveUp()
	}
	if err := dialect.Unhide(cl.setAside()); errors.Is(err, errStored) {
		cl.letGo()
		joined, err := cl.joinAlone()
		if err == nil && !joined {
			err = ErrLost
		}
		if err != nil {
			cl.interrupted(err)
			return cl.fail(err)
		}
		cl.duplicate()
		return nil
	} else if err != nil {
		if !cl.inDoubt && cl.contended(err) {
			return cl.giveUp()
		}
		return cl.Rollback(cl.unrecorded(err))
	}
	cl.wentAside()
	return nil
}

// wentAside frees all that the delivery holds, after the commit, and reports the verdict.
func (cl *claim) wentAside() {
	cl.end()
	if cl.verdict == stale {
		cl.turn.Settle(cl.hash)
	} else {
		cl.turn.Fail()
		cl.ambient.Committed()
	}
	if cl.lease != nil {
		cl.lease.done()
	}
	switch cl.verdict {
	case stale:
		cl.observeStale()
		cl.observeReplayed(replayStale, 0)
	case toHold:
		cl.observeHeld()
		cl.observeReplayed(replayHeld, 0)
	default:
		cl.consumer.store.observeParked(cl.ctx, cl.eventOf(cl.because))
		cl.observeReplayed(replayParked, 0)
	}
}

var errProducedUnseen = errors.New("the version gate did not let the message through, but a middleware between " +
	"middleware.Inbox and middleware.VersionGate produced messages: put it inside middleware.VersionGate")

// giveUp rolls back a delivery that is postponed, as if it had not happened.
func (cl *claim) giveUp() error {
	cl.ambient.End()
	if err := cl.tx.Rollback(); err != nil {
		cl.consumer.store.db.Forget()
	}
	cl.end()
	cl.turn.Fail()
	return errPostponed
}

// observeStale reports a message whose aggregate is past its version.
func (cl *claim) observeStale() {
	s := cl.consumer.store
	cl.consumer.tally.stale.Add(1)
	if s.config.LogDropped {
		s.logDropped(cl.delivery, "stale version")
	}
	if !s.observers.wanted(KindStale) && !s.debug.Load() {
		return
	}
	e := cl.event("stale version")
	s.observers.tell(cl.ctx, KindStale, e)
	if s.debug.Load() {
		s.log.Debug("inbox: stale version, handler not run", e.fields())
	}
}

func (cl *claim) observeHeld() {
	cl.consumer.tally.held.Add(1)
	s, e := cl.consumer.store, cl.eventOf(cl.because)
	s.log.Debug("inbox: message held for its predecessor", e.fields())
	s.observers.tell(cl.ctx, KindHeld, e)
}

func (cl *claim) observeReleased() {
	s, e := cl.consumer.store, cl.event("released")
	e.Count = int(cl.released)
	if s.bellOf(cl.consumer.name()) == nil {
		cl.consumer.warnedUnserved.Do(func() {
			s.log.Error("inbox: no queue of this process delivers the messages that the gate released; said once per consumer", ErrNotServed, e.fields())
		})
	}
	s.log.Debug("inbox: messages that waited for this one were released", e.fields())
	s.observers.tell(cl.ctx, KindReleased, e)
}
