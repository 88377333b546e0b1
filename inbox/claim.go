package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/internal/turns"
)

// Claim is what became of the wish to handle a delivery: either the right to, with a
// transaction that holds it, or the answer that there is nothing to do.
type Claim struct {
	*delivery

	id32     int32 // the consumer's
	former32 int32 // that of the epoch before
	fresh    bool
	openRow  bool   // the claim was taken from a row of open messages, closed at the end
	inDoubt  bool   // our commit failed, so it may have been applied
	over     bool   // committed or rolled back
	unserved bool   // a statement of ours failed behind the claim, as the database does not serve us
	answer   string // how a copy was known
	parked   why    // if the message was parked instead
	refused  bool   // because it was replayed
	queued   bool   // it was replayed, and the queue delivers what had failed
	outcome  []*message.Message

	// What the version gate says, and what for.
	decided  bool
	verdict  verdict
	waitsFor versioned
	because  why
	gated    *message.Message // as it is at the gate
	heldFor  time.Duration
	advances []advance
	released int64
	visit    *visit

	suppressed *ambient.Suppressed // what the handler would have sent; nil where it is sent

	tx        *owned.Tx
	span      *span
	handler   context.Context //nolint:containedctx // given to the handler
	ambient   *ambient.Tx
	leave     func() // the slot
	turn      turns.Turn
	began     time.Time
	twinSpent time.Duration // waiting for other processes
	watched   time.Time     // since when its outcome waits for the ack
	known     int64         // the caches' generation when the claim was made
}

// Claim takes msg for this consumer. It waits for copies that are being handled in this
// process without holding anything, and for those in other processes for at most TwinWait.
//
// If [Claim.Fresh], the caller runs the handler with [Claim.Context] and must end with
// [Claim.Commit] or [Claim.Rollback]. Otherwise it acks msg after publishing
// [Claim.Outcome]. On an error it nacks msg: nothing was done.
func (c *Consumer) Claim(msg *message.Message) (*Claim, error) { return c.claim(msg, &visit{}) }

func (c *Consumer) claim(msg *message.Message, v *visit) (*Claim, error) {
	d, err := c.readDelivery(msg)
	if err != nil {
		return nil, c.refused(d, err)
	}
	s := c.store
	if _, live := s.db.Live(d.ctx); live {
		return nil, d.fail(errors.New("middleware.Inbox stands twice on this handler: remove one"))
	}
	if err := s.admit(d); err != nil {
		d.interrupted(err)
		return nil, d.fail(err)
	}
	if !s.work.enter() {
		d.interrupted(ErrClosed)
		return nil, ErrClosed
	}
	cl := &Claim{delivery: d, visit: v}
	defer func() {
		if !cl.fresh {
			s.work.leave()
		}
	}()
	s.warnUnattended()
	c.warnUnguarded(d)
	if !v.told {
		v.told = true
		d.observe(KindReceived, "received", nil)
	}
	if kept, err := cl.keepKeyless(); kept {
		return cl, nil
	} else if err != nil {
		return nil, c.unclaimed(d, err)
	}
	if err := cl.obtain(); err != nil {
		var failed *beforeError
		if errors.Is(err, errFormer) {
			return cl.asFormer()
		}
		if errors.As(err, &failed) {
			return nil, d.name(failed.error)
		}
		return nil, c.unclaimed(d, err)
	}
	if !cl.fresh {
		return cl, nil
	}
	cl.as.HandOver(cl.msg)
	if v.made != nil {
		v.made.Give(cl.msg)
	}
	return cl, cl.runOnBegin()
}

// unclaimed ends a delivery whose message was neither claimed nor answered. Where nothing held it back
// yet, it is now.
func (c *Consumer) unclaimed(d *delivery, err error) error {
	if d.ctx.Err() == nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrInProgress) &&
		saysOf(err) == dialect.Other {
		return c.refused(d, err)
	}
	d.interrupted(err)
	return d.fail(err)
}

// runOnBegin runs OnBegin. Its failure is the handler's.
func (cl *Claim) runOnBegin() error {
	onBegin := cl.consumer.config.OnBegin
	if onBegin == nil {
		return nil
	}
	returned := false
	defer func() {
		if !returned {
			_ = cl.Rollback(errPanic)
		}
	}()
	err := onBegin(cl.handler, cl.tx.Tx, cl.msg)
	returned = true
	if err != nil {
		return cl.Rollback(fmt.Errorf("OnBegin: %w", err))
	}
	return nil
}

var errPanic = errors.New("the handler panicked")

// Fresh reports whether the handler must run.
func (cl *Claim) Fresh() bool { return cl.fresh }

// Outcome returns what an earlier run of the handler produced and the broker may not have:
// to be published again, with the same UUIDs, before the ack.
func (cl *Claim) Outcome() []*message.Message { return cl.outcome }

// Context returns the context for the handler: the message's, with the transaction in it,
// ending with the message's own context or with the transaction, whichever is first.
func (cl *Claim) Context() context.Context { return cl.handler }
