package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// sweep deletes what no consumer's retention governs.
func (j *janitor) sweep(ctx context.Context, now int64) error {
	s := j.store
	var defaults ConsumerConfig
	defaults.setDefaults()
	return errors.Join(
		j.closeShadowed(ctx), j.sweepBlobs(ctx, now), j.purgeActivity(ctx, now), j.purgeSteps(ctx, now), j.purgeProcesses(ctx, now),
		j.deleteAll(ctx, s.dialect.PurgeDropped, now-defaults.Retention.Microseconds()),
		j.deleteAll(ctx, s.dialect.PurgeLeases, now),
		j.deleteAll(ctx, s.dialect.Outbox.PurgeSent, now), // messages that a relay kept after sending
	)
}

// deleteAll deletes all that a statement finds, a thousand rows in each transaction. The number of
// rows is the last argument of the statement. The others bound it: what expires meanwhile stays.
func (j *janitor) deleteAll(ctx context.Context, statement string, args ...any) error {
	const batch = 1000
	args = append(args, batch)
	for deleted := int64(batch); deleted == batch && ctx.Err() == nil; {
		err := j.store.db.Write(ctx, func(tx *sqlx.Tx) (err error) {
			deleted, err = database.Affected(tx.ExecContext(ctx, statement, args...))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// openRow is a row of an open message, and whether it may be closed.
type openRow struct {
	ID        int64  `db:"id"`
	Consumer  int32  `db:"consumer"`
	MessageID []byte `db:"message_id"`
	Shadowed  bool   `db:"shadowed"`
}

// closeShadowed deletes open rows whose key is completed, because a completed claim prevails, unless a
// queue has one out: a handler that has committed and then fails is tried again. It reads some pages of
// the open rows, and the next call goes on behind them.
func (j *janitor) closeShadowed(ctx context.Context) error {
	const page = 500
	for range j.pages {
		var rows []openRow
		if err := j.store.db.SelectContext(ctx, &rows, j.store.dialect.SelectShadowed, j.shadows, page); err != nil {
			return fmt.Errorf("find open rows of completed messages: %w", err)
		}
		shadowed := make(map[int32][]openRow)
		for _, row := range rows {
			if row.Shadowed {
				shadowed[row.Consumer] = append(shadowed[row.Consumer], row)
			}
		}
		for consumer, of := range shadowed {
			if err := j.deleteShadowed(ctx, consumer, of); err != nil {
				return fmt.Errorf("delete open rows of completed messages: %w", err)
			}
		}
		if len(rows) < page {
			j.shadows = 0
			return nil
		}
		j.shadows = rows[len(rows)-1].ID
	}
	return nil
}

// deleteShadowed locks the claims before the rows, as a handler does, so that the two cannot
// deadlock and nothing opens a claim meanwhile. It deletes no other row that has taken the key of
// one of rows since.
func (j *janitor) deleteShadowed(ctx context.Context, consumer int32, rows []openRow) error {
	s := j.store
	ids, keys := make([]int64, 0, len(rows)), make([][]byte, 0, len(rows))
	for _, row := range rows {
		ids, keys = append(ids, row.ID), append(keys, row.MessageID)
	}
	return s.db.Write(ctx, func(tx *sqlx.Tx) error {
		if s.dialect.OneWriter { // its transactions must begin with a write
			if _, err := tx.ExecContext(ctx, s.dialect.LockConsumer, consumer); err != nil {
				return err
			}
		}
		query, args, err := s.dialect.In(s.dialect.LockExpired, consumer, keys, int64(math.MaxInt64))
		if err != nil {
			return err
		}
		var completed []claimRow
		if err := tx.SelectContext(ctx, &completed, query, args...); err != nil || len(completed) == 0 {
			return err
		}
		gone := make([][]byte, 0, len(completed))
		for _, c := range completed {
			gone = append(gone, c.ID)
		}
		if query, args, err = s.dialect.In(s.dialect.DeleteMessages, consumer, gone, ids); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, query, args...)
		return err
	})
}
