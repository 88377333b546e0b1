package inbox

import (
	"context"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/requests"
	"github.com/millrace-go/millrace/internal/turns"
)

// visit is the state of one delivery at the version gate, over all its tries. Between two tries the
// delivery holds at most turns in memory: no claim, no slot and no connection.
type visit struct {
	turns     []turns.Turn // of its aggregates, in order
	contended int
	fruitless int  // tries to record where aggregates begin
	arrived   bool // at the gate
	foresaw   bool
	foreseen  []versioned                     // the versions of the message, as far as they are known before the transaction
	unstepped bool                            // a step was refused: the message is claimed alone
	offered   bool                            // by the gate, to wait in memory
	waited    bool                            // in memory, for a predecessor
	told      bool                            // observers know that it was received
	wait      func(ctx context.Context) error // before the next try

	prepared   bool              // Before ran
	made       *original.Message // the message as Before left it; nil if Before did not change it
	suppressed int               // how many messages Before would have sent
	requests   requests.Made     // that package httpkey gave an idempotency key
}

// enter takes the turns of the aggregates. If it cannot take all at once, it frees them and
// postpones the claim until they are free.
func (v *visit) enter(cl *claim, versions []versioned) (entered bool) {
	keys, entered := v.enterNow(cl, versions)
	if !entered {
		all := &cl.consumer.store.aggregates
		cl.postpone(func(ctx context.Context) error { return v.queue(ctx, all, keys) })
	}
	return entered
}

// enterNow takes the turns of the aggregates, which it returns, if all are free.
func (v *visit) enterNow(cl *claim, versions []versioned) (keys []string, entered bool) {
	if len(v.turns) == len(versions) {
		return nil, true
	}
	keys = make([]string, 0, len(versions))
	for _, version := range versions {
		keys = append(keys, cl.consumer.prefix+string(version.id))
	}
	for _, key := range keys {
		turn, taken := cl.consumer.store.aggregates.Try(key)
		if !taken {
			v.leave()
			return keys, false
		}
		v.turns = append(v.turns, turn)
	}
	return keys, true
}

// queue waits for the turns, in the order in which all deliveries take them.
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

// leave frees the turns, so that the next message of the aggregates can enter.
func (v *visit) leave() {
	for _, turn := range v.turns {
		turn.Fail()
	}
	v.turns = nil
}

// postpone makes the caller roll the claim back and claim again after wait.
func (cl *claim) postpone(wait func(ctx context.Context) error) {
	cl.verdict, cl.visit.wait = postponed, wait
}

// Abandon ends a run that panicked or called runtime.Goexit, as [claim.Rollback] ends a failed one, but never
// postpones it. The caller defers Abandon, which nacks the message after a Goexit and lets a panic continue.
// After Commit or Rollback it does nothing.
func (cl *claim) Abandon() {
	if cl.over {
		return
	}
	if r := recover(); r != nil {
		defer panic(r)
	} else {
		defer cl.msg.Nack() // nothing else nacks it, and an observer may panic now
	}
	defer cl.visit.leave()
	_ = cl.Rollback(errPanic) // the caller gets the panic, not the error
}

// contended postpones the claim and returns true if err says that another transaction locked a row
// that the gate or the end of the run needs, unless that happened too often. The run leaves nothing behind.
func (cl *claim) contended(err error) bool {
	if dialect.Classify(err) != dialect.Contention || cl.visit.contended == database.MaxTries {
		return false
	}
	cl.visit.contended++
	cl.consumer.store.observeContention(cl.delivery, err)
	try := cl.visit.contended
	cl.postpone(func(ctx context.Context) error { return database.Pause(ctx, try) })
	return true
}

// Postponed reports whether the version gate wants the message to wait, or a deadlock undid the
// run and left nothing of it. The caller continues with [claim.Again].
func (cl *claim) Postponed() bool { return cl.verdict == postponed }

// Again waits as long as the version gate or a deadlock demands, without a transaction or slot, and
// claims the message again. Call it after Commit or Rollback of a claim that is [claim.Postponed].
func (cl *claim) Again() (next *claim, err error) {
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
