package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// seeks reports whether the message that the gate sees first decides where its aggregate begins. The gate then records the
// beginning in a transaction of its own, before the handler runs: if that run fails, or its process is killed, the next version
// must not become the beginning, and the message come too late.
func (g *gate) seeks() bool { return g.config.First == FirstSeen && g.config.OnGap != GapLatest }

// begun returns the versions with which aggregates begin whose rows this transaction has inserted.
func (cl *claim) begun(g *gate, versions []versioned, rows []stored.Aggregate) (begun []versioned) {
	if !g.seeks() {
		return nil
	}
	for i, row := range rows {
		if row.Token == cl.token && row.Version < versions[i].Number && row.First == versions[i].Number {
			begun = append(begun, versions[i])
		}
	}
	return begun
}

// held reports whether the gate put the message aside before.
func (d *delivery) held() bool { return d.lease != nil && d.lease.row.Aggregate != nil }

// awaitBeginning holds a message that the gate put aside before the epoch was raised, or the versions were forgotten: it came too
// early then, so it is not where its aggregates begin. They have no rows until a message that just came begins them.
func (cl *claim) awaitBeginning(g *gate, begun []versioned) error {
	v := begun[0]
	if err := cl.hold(g, v, fmt.Sprintf("waits until another message begins aggregate %q: it was put aside before, and does not begin it", v.Aggregate)); err != nil {
		return err
	}
	return cl.consumer.store.dropAggregates(cl.span.tx, cl.tx.Tx, cl.id32, begun)
}

func (s *Store) dropAggregates(ctx context.Context, tx *sqlx.Tx, consumer int32, of []versioned) error {
	query, args, err := s.dialect.In(s.dialect.Gate.DeleteVersions, consumer, aggregatesOf(of))
	if err == nil {
		_, err = tx.ExecContext(ctx, query, args...)
	}
	if err != nil {
		return fmt.Errorf("leave %d aggregates without a beginning: %w", len(of), err)
	}
	return nil
}

func aggregatesOf(of []versioned) (ids [][]byte) {
	for _, v := range of {
		ids = append(ids, v.id)
	}
	return ids
}

// mostFruitless is how often a delivery tries in vain to record where aggregates begin.
const mostFruitless = 3

// begin records where aggregates begin, before the message is claimed again. If others keep it from that, the next claim finds out
// what they did; but a delivery that gets the aggregates for itself, and never for begin, goes back to its source.
func (cl *claim) begin(ctx context.Context, firsts []versioned) error {
	err := cl.consumer.begin(ctx, cl.id32, firsts, !cl.gate.jumps(cl.gated))
	var locked *lockedError
	if !errors.As(err, &locked) {
		return err
	}
	cl.consumer.store.observeContention(cl.delivery, err)
	if cl.visit.fruitless++; cl.visit.fruitless < mostFruitless {
		return nil
	}
	return err
}

// begin records that aggregates begin with these versions, none of which is applied yet. It leaves those that have begun. If other
// processes have them for longer than gatePatience, it returns a lockedError. With one writer, no other transaction can have them.
// With lower, messages that are held may move a beginning forward.
func (c *claimConsumer) begin(ctx context.Context, consumer int32, firsts []versioned, lower bool) error {
	s, patience := c.store, c.config.gatePatience()
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // tells transactions apart, keeps no secret
	var args []any
	for _, v := range firsts {
		args = append(args, consumer, v.id, v.Number-1, v.Number, token, []byte{}, 0)
	}
	statement := s.dialect.Impatient(dialect.Rows(s.dialect.Gate.LockAggregates, len(firsts)))
	leave, err := c.slot(ctx)
	if err != nil {
		return err
	}
	defer leave()
	bounded, cancel := context.WithTimeout(ctx, c.config.Timeout+patience)
	defer cancel()
	late, until, released := false, time.Time{}, int64(0)
	err = s.db.WriteInTurn(bounded, func(tx *sqlx.Tx) error {
		patient := bounded
		if !s.dialect.OneWriter {
			var cancel context.CancelFunc
			if until.IsZero() { // a database that ends the wait itself has it tried again
				until = time.Now().Add(patience)
			}
			patient, cancel = context.WithDeadline(bounded, until)
			defer cancel()
		}
		_, err := tx.ExecContext(patient, statement, args...)
		late = err != nil && patient.Err() != nil && bounded.Err() == nil
		if err == nil {
			released, err = s.beginHeld(bounded, tx, consumer, token, firsts, lower)
		}
		return err
	})
	switch {
	case err == nil && released > 0:
		s.wakeQueue(c.name())
		return nil
	case err == nil:
		return nil
	case late, dialect.Classify(err) == dialect.Contention:
		return &lockedError{firsts[0].Aggregate, patience}
	case dialect.Cut(err) && bounded.Err() == nil:
		return cutShort(&lockedError{firsts[0].Aggregate, patience}, err)
	}
	return fmt.Errorf("record where %d aggregates begin: %w", len(firsts), err)
}

// beginHeld has the aggregates that tx has just begun, with token, release what [claim.awaitBeginning] held: at once what precedes
// the beginning, which moves to the oldest held message from which no version is missing, and the others when they follow.
func (s *Store) beginHeld(ctx context.Context, tx *sqlx.Tx, consumer int32, token int64, firsts []versioned, lower bool) (released int64, err error) {
	counts, err := s.countHeld(ctx, tx, consumer, 1, aggregatesOf(firsts)...)
	if err != nil {
		return 0, err
	}
	for _, v := range firsts {
		if counts[string(v.id)] == 0 {
			continue
		}
		n, err := s.beginWithHeld(ctx, tx, consumer, token, v, lower)
		if err != nil {
			return 0, fmt.Errorf("begin aggregate %q, of which messages are held: %w", v.Aggregate, err)
		}
		released += n
	}
	return released, nil
}

func (s *Store) beginWithHeld(ctx context.Context, tx *sqlx.Tx, consumer int32, token int64, v versioned, lower bool) (released int64, err error) {
	gate := &s.dialect.Gate
	var row stored.Aggregate
	if err := row.Scan(tx.QueryRowContext(ctx, gate.SelectAggregate, consumer, v.id)); err != nil || row.Token != token {
		return 0, err // it had begun, and has released what it must
	}
	var held []stored.Message
	if err := tx.SelectContext(ctx, &held, gate.SelectHeld, consumer, v.id, math.MaxInt32); err != nil {
		return 0, err
	}
	first, last := v.Number, v.Number
	for _, m := range slices.Backward(held) {
		if last = max(last, m.Version.Int64); lower && m.Version.Int64 == first-1 {
			first--
		}
	}
	if err := s.dropAggregates(ctx, tx, consumer, []versioned{v}); err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, gate.LockAggregates, consumer, v.id, first-1, first, 0, []byte{}, 0); err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, gate.RaiseHeld, last, consumer, v.id); err != nil {
		return 0, err
	}
	return s.releaseHeld(ctx, tx, consumer, versioned{Version{v.Aggregate, first - 1}, v.id}, first)
}
