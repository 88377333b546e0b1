package inbox

import (
	"context"
	"fmt"

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

// begin records that aggregates begin with these versions, none of which is applied yet. It leaves those that have begun, and
// does not wait for other processes that have them.
func (c *claimConsumer) begin(ctx context.Context, consumer int32, firsts []versioned) error {
	s := c.store
	var args []any
	for _, v := range firsts {
		args = append(args, consumer, v.id, v.Number-1, v.Number, 0, []byte{}, 0)
	}
	statement := s.dialect.Impatient(dialect.Rows(s.dialect.Gate.LockAggregates, len(firsts)))
	patient, cancel := context.WithTimeout(ctx, c.config.gatePatience())
	defer cancel()
	err := s.db.Write(patient, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(patient, statement, args...)
		return err
	})
	if err == nil || ctx.Err() == nil && (patient.Err() != nil || dialect.Classify(err) == dialect.Contention) {
		return nil
	}
	return fmt.Errorf("record where %d aggregates begin: %w", len(firsts), err)
}
