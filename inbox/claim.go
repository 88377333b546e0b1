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
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
)

// claim is the result of claiming a delivery: either the right to handle it, held by an open
// transaction, or the answer that there is nothing to do.
type claim struct {
	*delivery

	id32           int32 // the id of the consumer in the tables
	former32       int32 // the same for the epoch before
	fresh          bool
	openRow        bool               // the message has an open row, which Commit closes
	openAs         stored.Status      // the status of that row if no queue delivers this message
	inDoubt        bool               // our COMMIT failed, so it may have been applied
	refused        bool               // our COMMIT was refused because of a conflict
	over           bool               // committed or rolled back
	unserved       bool               // the database is down, a setting is wrong or the message too large: pause before the nack
	answer         string             // how the inbox knew a copy
	joins          stored.Status      // of the stored message that it is a copy of; 0 if there is none
	parked         why                // why the message was parked; zero if it was not
	parkedAsReplay bool               // it was parked because it was replayed
	queued         bool               // it was replayed, and the queue delivers the stored message that had failed
	outcome        []*message.Message // of an earlier run, which the broker may lack
	moved          func()             // follows the commit that moved that to the outbox

	// The verdict of the version gate, and its details.
	gate     *gate // that asked
	decided  bool
	verdict  verdict
	ungated  error // why the gate reached no verdict; nil if it did
	waitsFor versioned
	because  why
	gated    *message.Message // the message as the gate sees it
	heldFor  time.Duration
	step     *step // of an aggregate, in the statement that claimed the message; nil if that only claimed it
	advances []advance
	released int64
	visit    *visit

	suppressed *ambient.Suppressed // counts the messages that are not sent; nil if they are sent

	batch *batchRun // set if the claim stands for all messages of a batch

	tx        *owned.Tx
	span      *span
	handler   context.Context //nolint:containedctx // given to the handler; ends with the message's own or with the transaction
	ambient   *ambient.Tx
	leave     func() // gives the slot back
	turn      turns.Turn
	began     time.Time
	twinSpent time.Duration // of TwinWait, on other processes
	watched   time.Time     // when the settler began to wait for the ack
	known     int64         // the generation of the caches when the claim was made
}

// claim claims msg for this consumer. While another goroutine of this process handles a copy,
// claim waits and holds nothing; for another process it waits at most TwinWait.
//
// If the claim is fresh, the caller runs the handler with the claim's context and must end with
// [claim.Commit] or [claim.Rollback]. Otherwise it publishes the outcome, then acks msg. On an error
// it nacks msg: nothing was done.
func (c *claimConsumer) claim(msg *message.Message, v *visit) (*claim, error) {
	if err := c.refuseCarried(msg); err != nil {
		return nil, err
	}
	d, err := c.readDelivery(msg)
	if err != nil {
		return nil, c.reject(d, err)
	}
	s := c.store
	if within, outer := d.nested(); within {
		if outer != nil {
			outer.unserved = true
		}
		return nil, d.fail(errors.New("middleware.Inbox stands twice on this handler: remove one"))
	}
	if err := s.admit(d); err != nil {
		d.interrupted(err)
		return nil, d.fail(err)
	}
	cl := &claim{delivery: d, visit: v}
	if err := cl.await(); err != nil {
		d.interrupted(err)
		return nil, d.fail(err)
	}
	if !s.work.enter() {
		_ = c.reject(d, ErrClosed)
		return nil, ErrClosed
	}
	defer func() {
		if !cl.fresh {
			v.leave()
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
			c.pace.doubt(d.ctx, failed.error)
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

// nested reports whether the handler of d runs in the open transaction of a claim, and which: that of the message, if
// known, on whatever database. What an inbox further in holds or parks, the outer one would drop when it comes again.
func (d *delivery) nested() (within bool, outer *claim) {
	outer = claimOf(d.msg)
	_, within = d.consumer.store.db.Live(d.ctx)
	return within || outer != nil && (outer.msg == d.msg || d.as.Came == outer.as.Came), outer
}

// refuseCarried refuses a message whose context came with the open transaction of another message. Its own transaction could
// wait for that one, and its context ends with it.
func (c *claimConsumer) refuseCarried(msg *message.Message) error {
	ctx := msg.Context()
	tx := ambient.From(ctx)
	if _, live := tx.Live(c.store.db.DB); !live || !carried(tx, msg) {
		return nil
	}
	// The queue of another consumer may deliver that other message.
	if a := deliveredBy(ctx); a != nil && a.queue.store == c.store && a.queue.name == c.queueName() {
		a.interrupted(errCarried)
	}
	c.pace.wait(ctx)
	d := &delivery{consumer: c, msg: msg, topic: message.SubscribeTopicFromCtx(ctx)}
	return d.fail(errCarried)
}

var errCarried = errors.New("the context of the message carries the transaction of the handler that published it, which has not ended: " +
	"publish through the outbox, or without that context")

// unclaimed ends a delivery that claiming failed for. It delays the nack, unless a wait for the database
// or for a twin has delayed it already.
func (c *claimConsumer) unclaimed(d *delivery, err error) error {
	kind := saysOf(err)
	if d.ctx.Err() == nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrInProgress) &&
		(kind == dialect.Other || kind == dialect.TooLarge) {
		return c.reject(d, err)
	}
	d.interrupted(err)
	return d.fail(err)
}

// runOnBegin runs OnBegin. If that fails, the run fails as if the handler had.
func (cl *claim) runOnBegin() error {
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

// What a middleware inside the inbox does to a run.
var (
	errRanAgain       = errors.New("it ran the handler again in the same transaction")
	errReturnedBefore = errors.New("it returned before the handler did")
)
