package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/original"
)

// beforeError is an error of Before.
type beforeError struct{ error }

func (e *beforeError) Unwrap() error { return e.error }

// prepares reports whether Before must still run for the message.
func (cl *claim) prepares() bool {
	return cl.consumer.config.Before != nil && !cl.visit.prepared
}

// prepare runs Before if the next move may lead to the handler. The delivery then holds the turn of
// its key, so that copies in this process wait, but neither a transaction nor a slot.
func (cl *claim) prepare(what move) error {
	if what != insert && what != retake || !cl.prepares() {
		return nil
	}
	// A message that is about to be parked needs no Before.
	objection, err := cl.objection(cl.ctx, cl.consumer.store.db, what)
	if err != nil || objection.text != "" {
		return err
	}
	if _, err := cl.askFormer(cl.ctx, cl.consumer.store.db); err != nil { // the epoch before may have it
		return err
	}
	cl.began = time.Now()
	if err := cl.runBefore(); err != nil {
		return cl.failBefore(err)
	}
	cl.visit.prepared = true
	return nil
}

func (cl *claim) runBefore() (err error) {
	config := &cl.consumer.config
	p := &preparation{claim: cl}
	ctx, cancel := context.WithTimeoutCause(cl.ctx, config.BeforeTimeout, errBeforeTimeout)
	defer cancel()
	ctx = preparationContext{ctx, p}
	if cl.under(ReplaySuppress) {
		var counted *ambient.Suppressed
		ctx, counted = ambient.Suppress(ctx)
		defer func() {
			counted.End()
			cl.visit.suppressed = counted.Count()
		}()
	}
	cl.as.HandOver(cl.msg)
	cl.msg.SetContext(ctx)
	returned := false
	defer func() {
		p.over.Store(true)
		cl.msg.SetContext(cl.ctx)
		if returned && !cl.as.Seen.Is(cl.msg) { // only the handler sees the changes that Before made
			cl.visit.made = original.Of(cl.msg)
		}
		cl.as.Restore(cl.msg)
	}()
	err = config.Before(cl.msg)
	returned = true
	if err != nil && cl.ctx.Err() == nil && errors.Is(context.Cause(ctx), errBeforeTimeout) {
		return tookTooLong("BeforeTimeout", config.BeforeTimeout, err)
	}
	return err
}

var errBeforeTimeout = errors.New("BeforeTimeout ran out")

// failBefore ends a delivery whose Before failed, as if the handler had.
func (cl *claim) failBefore(cause error) error {
	cl.failed(cause)
	if cl.records() {
		if leave, err := cl.consumer.slot(cl.ctx); err == nil {
			func() {
				defer leave()
				cl.recordFailure(cause)
			}()
		}
	}
	cl.observeFailed(cause)
	return &beforeError{cause}
}
