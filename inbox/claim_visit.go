package inbox

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/requests"
	"github.com/millrace-go/millrace/internal/turns"
)

// visit is how one delivery fares at the gate, over all its tries. Between two tries it
// holds at most turns in memory: no claim, no slot and no connection.
type visit struct {
	turns     []turns.Turn  // of its aggregates, in order
	waited    time.Duration // for a predecessor
	contended int
	told      bool                            // that it was received
	wait      func(ctx context.Context) error // before the next try

	prepared   bool              // Before ran …
	made       *original.Message // … and made this of the message, nil: nothing else
	suppressed int               // of what Before would have sent
	requests   requests.Made     // with a key of the message
}

// enter takes the turns of the aggregates, or has the claim given up to wait for them.
func (v *visit) enter(cl *Claim, versions []versioned) (entered bool) {
	s := cl.consumer.store
	if len(v.turns) == len(versions) {
		return true
	}
	keys := make([]string, 0, len(versions))
	for _, version := range versions {
		keys = append(keys, cl.consumer.prefix+string(version.id))
	}
	for _, key := range keys {
		turn, taken := s.aggregates.Try(key)
		if !taken {
			v.leave()
			cl.postpone(func(ctx context.Context) error { return v.queue(ctx, &s.aggregates, keys) })
			return false
		}
		v.turns = append(v.turns, turn)
	}
	return true
}

// queue waits for the turns in the order in which everyone takes them.
func (v *visit) queue(ctx context.Context, all *turns.Turns, keys []string) error {
	for _, key := range keys {
		turn, _, err := all.Take(ctx, key, 0)
		if err != nil {
			v.leave()
			return err
		}
		v.turns = append(v.turns, turn)
	}
	return nil
}

// leave lets the next message of the aggregates in.
func (v *visit) leave() {
	for _, turn := range v.turns {
		turn.Fail()
	}
	v.turns = nil
}

// postpone has the claim rolled back and made again after wait.
func (cl *Claim) postpone(wait func(ctx context.Context) error) {
	cl.verdict, cl.visit.wait = postponed, wait
}

// Abandon is deferred, and ends a run that panicked, or ended its goroutine. Nothing of it remains, as after
// [Claim.Rollback], and there will be no other try. After the end of a run it does nothing.
func (cl *Claim) Abandon() {
	if cl.over {
		return
	}
	if r := recover(); r != nil {
		defer panic(r)
	} else {
		defer cl.msg.Nack() // nobody else does, even if an observer panics now
	}
	defer cl.visit.leave()
	_ = cl.Rollback(errPanic) // it goes on its way by itself
}

// contended reports whether err says that someone else locked what the gate or the end of
// the run needs, and has the delivery tried again then. Nothing is left of a handler that has run.
func (cl *Claim) contended(err error) bool {
	if dialect.Classify(err) != dialect.Contention || cl.visit.contended == database.MaxTries {
		return false
	}
	cl.visit.contended++
	cl.consumer.store.observeContention(cl.delivery, err)
	try := cl.visit.contended
	cl.postpone(func(ctx context.Context) error { return database.Pause(ctx, try) })
	return true
}

// Postponed reports whether the version gate wants the message to wait, or a deadlock undid
// the run where nobody can tell it from one that never was. The caller goes on with [Claim.Again].
func (cl *Claim) Postponed() bool { return cl.verdict == postponed }

// Again waits for what the version gate waits for, holding nothing, and claims the message
// anew. It follows [Claim.Commit] or [Claim.Rollback] of a claim that was [Claim.Postponed].
func (cl *Claim) Again() (next *Claim, err error) {
	kept := false
	defer func() {
		if !kept {
			cl.visit.leave()
		}
	}()
	if err := cl.visit.wait(cl.ctx); err != nil {
		cl.interrupted(err)
		return nil, cl.fail(err)
	}
	next, err = cl.consumer.claim(cl.msg, cl.visit)
	kept = err == nil && next.fresh
	return next, err
}
