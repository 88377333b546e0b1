package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/batching"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/stack"
)

// leadAlone is how long a message that is handled by itself keeps others from forming a batch.
const leadAlone = time.Second

// run handles the members of the next batch, which m leads. If a batch fails, its halves are tried, until the
// members that fail are alone, or Timeout has passed. Each member is told how it ends.
func (b *batches) run(m *member) {
	stack.Grow()
	all := b.take(m)
	if len(all) == 1 {
		b.observe(all, ReasonAlone)
		b.warnSingly(m)
		m.say(endedAlone, nil)
		timer := time.AfterFunc(leadAlone, m.next)
		next := m.next
		m.next = func() { timer.Stop(); next() }
		return
	}
	defer m.next()
	defer context.AfterFunc(m.delivery.ctx, m.leave)()
	defer sayAlone(all) // if the handler ends its goroutine, or an observer panics
	began := time.Now()
	for todo := [][]*member{all}; len(todo) > 0; {
		part := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(part) < 2 || m.batch.ctx.Err() != nil || time.Since(began) > b.consumer.config.Timeout {
			sayAlone(part)
			continue
		}
		todo = append(todo, b.attempt(part)...)
	}
}

// attempt handles part in one transaction, and tells each member how it ends, except those that it returns: they
// are to be tried again, the last part first.
func (b *batches) attempt(part []*member) (next [][]*member) {
	ready, runs := b.lineUp(part)
	own := &lineup{runs: runs}
	defer own.enter()()
	r := b.claim(ready)
	if r == nil {
		if len(ready) > 0 {
			b.observe(ready, ReasonAlone)
		}
		sayAlone(ready)
		return nil
	}
	r.lineup = own
	over := false
	defer func() { // the handler ended its goroutine, or a function of the service panicked
		if !over {
			r.restore()
			r.end()
		}
	}()
	aside, err := r.pass(runs)
	if len(aside) > 0 || err != nil {
		over = true
		return r.retreat(aside, err)
	}
	var produced []*message.Message
	if len(r.members) > 0 {
		produced, err = r.call()
	}
	if err == nil {
		err = r.commit(produced)
	}
	over = true
	if err != nil {
		return r.fail(err)
	}
	r.end()
	r.rememberVersions()
	r.whole.ambient.Committed()
	b.observe(r.all(), ReasonCommitted)
	for _, m := range r.members {
		m.say(endedCommitted, nil)
	}
	for _, m := range r.aside {
		m.say(endedAside, nil)
	}
	return nil
}

// say tells m how it ends, once.
func (m *member) say(what ending, err error) {
	if m.answered {
		return
	}
	m.answered = true
	m.leave()
	m.said <- said{what, err}
}

func sayAlone(members []*member) {
	for _, m := range members {
		m.say(endedAlone, nil)
	}
}

// batchRun is one transaction for several messages.
type batchRun struct {
	*batches
	members []*member       // whose keys it has claimed, in the order in which the handler gets them
	aside   []*member       // whose keys it has claimed, but which it holds or passes over
	whole   *claim          // stands for all their claims
	ctx     context.Context //nolint:containedctx // given to the handler
	leave   func()          // gives the slot back
	lineup  *lineup         // of its aggregates
	begun   []versioned     // where aggregates begin that are new, to be recorded before the batch is tried again
}

// all returns the messages whose keys r has claimed.
func (r *batchRun) all() []*member { return slices.Concat(r.members, r.aside) }

// retreat ends a run whose aggregates are not where its messages need them. It returns all members but aside, which
// end alone; after an error all do.
func (r *batchRun) retreat(aside []*member, err error) (next [][]*member) {
	s := r.consumer.store
	r.end() // before any of them claims its key again
	if len(r.begun) > 0 {
		err = r.consumer.begin(r.members[0].batch.ctx, r.whole.id32, r.begun, true)
	}
	if err != nil {
		aside = r.all()
		if errors.Is(err, ErrInProgress) || dialect.Classify(s.db.Noticed(err)) == dialect.Contention {
			s.observeContention(r.whole.delivery, err)
		} else {
			s.log.Info("inbox: the versions of a batch cannot be compared; its messages are handled one by one",
				watermill.LogFields{"consumer": r.consumer.config.Name, "count": len(aside), "err": err.Error()})
		}
	}
	sayAlone(aside)
	return [][]*member{slices.DeleteFunc(r.all(), func(m *member) bool { return m.answered })}
}

// restore gives each message its content back, in a copy: the handler may have kept, and change, the one it had.
func (r *batchRun) restore() {
	for _, m := range r.all() {
		m.delivery.as.Seen.Give(m.delivery.msg)
	}
}

// end frees what the run holds, once. It rolls back what was not committed.
func (r *batchRun) end() {
	r.whole.ambient.End()
	_ = r.whole.tx.Rollback() // if this fails, the server rolls back when the connection ends
	r.whole.span.end()
	r.leave()
}

// call runs the handler. A panic is an error.
func (r *batchRun) call() (produced []*message.Message, err error) {
	msgs := make([]*message.Message, 0, len(r.members))
	for _, m := range r.members {
		d := m.delivery
		d.as.HandOver(d.msg)
		d.msg.SetContext(m.claim.handler)
		msgs = append(msgs, d.msg)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return r.handler(r.ctx, msgs)
}

// commit is [claim.Commit] for all members.
func (r *batchRun) commit(produced []*message.Message) error {
	for _, m := range r.members {
		d := m.delivery
		produced = original.Apart(d.ctx, produced, d.msg)
		d.as.Restore(d.msg)
	}
	var nacked []error
	for _, m := range r.members {
		err := m.claim.approve(produced)
		if errors.Is(err, errNacked) {
			nacked = append(nacked, &batching.Failed{Msg: m.delivery.msg, Err: err})
			continue
		}
		if err != nil {
			return err
		}
		m.claim.answeredEarly()
	}
	if len(nacked) > 0 {
		return errors.Join(nacked...)
	}
	return dialect.Unhide(r.whole.finish(produced))
}

// sealRows is [claim.sealRows] for all members. What the handler returned is no message's own.
func (r *batchRun) sealRows(ctx context.Context, produced []*message.Message) (rows sealedRows, err error) {
	if rows.outcome, err = r.whole.sealOutcome(ctx, produced); err != nil {
		return rows, err
	}
	for _, m := range r.members {
		if body := r.whole.ambient.Result(); body != nil && m.claim.ambient.Result() == nil {
			m.claim.ambient.SetResult(body)
		}
		own, err := m.claim.sealRows(ctx, nil)
		if err != nil {
			return rows, err
		}
		rows.members = append(rows.members, own)
	}
	return rows, nil
}

// writeRows is [claim.writeRows] for all members.
func (r *batchRun) writeRows(ctx context.Context, tx *sqlx.Tx, rows sealedRows, produced []*message.Message) error {
	if len(produced) > 0 {
		if err := r.whole.storeProduced(ctx, tx, rows.outcome, produced); err != nil {
			return err
		}
	}
	for i, m := range r.members {
		if err := m.claim.storeResult(ctx, tx, rows.members[i].result); err != nil {
			return err
		}
		if err := m.claim.journal(ctx, tx, rows.members[i].journal); err != nil {
			return err
		}
	}
	if err := r.release(ctx, tx); err != nil {
		return err
	}
	return r.closeLeased(ctx, tx)
}

// closeLeased is [claim.closeOpenRow] for all members that a queue delivers.
func (r *batchRun) closeLeased(ctx context.Context, tx *sqlx.Tx) error {
	var leased []*Leased
	for _, m := range r.all() { // a message that was held has no row that a queue has leased
		if m.delivery.lease != nil {
			leased = append(leased, m.delivery.lease)
		}
	}
	if len(leased) == 0 {
		return nil
	}
	if err := leased[0].queue.execOnAll(ctx, tx, leased, r.consumer.store.dialect.Queue.DeleteLeased); err != nil {
		return fmt.Errorf("close %d stored messages: %w", len(leased), err)
	}
	return nil
}

// fail rolls back. It returns what is to be tried again: all but the messages that cause names, or two halves.
func (r *batchRun) fail(cause error) (next [][]*member) {
	s, whole := r.consumer.store, r.whole
	cause = sound(cause)
	whole.ambient.End()
	if err := whole.tx.Rollback(); err != nil {
		s.db.Forget()
	}
	r.restore()
	// If the transaction may have been committed, each message is looked up by itself.
	mine, err := false, error(nil)
	if !whole.inDoubt {
		mine, err = r.committed()
	}
	r.end()
	log := s.log.With(watermill.LogFields{"consumer": r.consumer.config.Name, "count": len(r.all())})
	about := watermill.LogFields{"err": whole.reportRefusedWrites(whole.lateness(cause)).Error()}
	switch {
	case whole.inDoubt || err != nil:
		log.Info("inbox: a batch failed, and may have been committed; its messages are looked up one by one", about)
		r.observe(r.all(), ReasonAlone)
		sayAlone(r.all())
		return nil
	case mine:
		r.observe(r.all(), ReasonCommitted)
		for _, m := range r.all() {
			if m.claim.verdict == toHold {
				m.say(endedAside, nil)
				continue
			}
			m.undone = r.lineup.enter() // successors wait until the versions are taken back, also those of messages that were passed over
			m.say(endedFailed, cause)
		}
		return nil
	}
	bad, rest := r.named(cause)
	if len(bad) > 0 {
		log.Info("inbox: messages of a batch failed; the others are tried again without them", about)
		r.observe(r.all(), ReasonNamed)
		for _, m := range bad {
			if closed(m.delivery.msg.Nacked()) { // its source redelivers it
				m.undone = func() {}
				m.say(endedFailed, errNacked)
			}
		}
		sayAlone(bad)
		return [][]*member{rest}
	}
	log.Info("inbox: a batch failed; its halves are tried", about)
	r.observe(r.all(), ReasonHalved)
	half := len(rest) / 2
	return [][]*member{rest[half:], rest[:half]}
}

// committed reports whether the handler has committed the transaction itself.
func (r *batchRun) committed() (bool, error) {
	ctx, cancel := r.whole.cleanup()
	defer cancel()
	return r.whole.committed(ctx)
}

// named returns the members that cause names, and the others.
func (r *batchRun) named(cause error) (bad, rest []*member) {
	all := batching.Named(cause)
	for _, m := range r.all() {
		if slices.Contains(all, m.delivery.msg) {
			bad = append(bad, m)
		} else {
			rest = append(rest, m)
		}
	}
	return bad, rest
}
