package inbox

import (
	"context"
	"errors"
	"fmt"
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

// mostFruitless is how often a delivery tries in vain to record where aggregates begin.
const mostFruitless = 3

// begin records where aggregates begin, before the message is claimed again. If others keep it from that, the next claim finds out
// what they did; but a delivery that gets the aggregates for itself, and never for begin, goes back to its source.
func (cl *claim) begin(ctx context.Context, firsts []versioned) error {
	err := cl.consumer.begin(ctx, cl.id32, firsts)
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
func (c *claimConsumer) begin(ctx context.Context, consumer int32, firsts []versioned) error {
	s, patience := c.store, c.config.gatePatience()
	var args []any
	for _, v := range firsts {
		args = append(args, consumer, v.id, v.Number-1, v.Number, 0, []byte{}, 0)
	}
	statement := s.dialect.Impatient(dialect.Rows(s.dialect.Gate.LockAggregates, len(firsts)))
	leave, err := c.slot(ctx)
	if err != nil {
		return err
	}
	defer leave()
	bounded, cancel := context.WithTimeout(ctx, c.config.Timeout+patience)
	defer cancel()
	late, until := false, time.Time{}
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
		return err
	})
	switch {
	case err == nil:
		return nil
	case late, dialect.Classify(err) == dialect.Contention:
		return &lockedError{firsts[0].Aggregate, patience}
	}
	return fmt.Errorf("record where %d aggregates begin: %w", len(firsts), err)
}
