package inbox

import (
	"bytes"
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// moveSteps notes the new id of a message with its steps, so that the janitor keeps them as long as the message is open.
func (q *Queue) moveSteps(ctx context.Context, tx *sqlx.Tx, row stored.Message, id []byte) error {
	if bytes.Equal(id, row.MessageID) {
		return nil
	}
	_, err := tx.ExecContext(ctx, q.store.dialect.Steps.MoveSteps, id, row.MessageID, []byte(q.store.config.Namespace), []byte(q.name.Name))
	return err
}

// purgeSteps deletes steps that were not used within the retention of their consumers.
func (j *janitor) purgeSteps(ctx context.Context, now int64) error {
	const batch = 500
	s := j.store
	for _, state := range []stored.StepState{stored.StepDone, stored.StepNotDone} {
		for ctx.Err() == nil {
			var ids [][]byte
			err := s.db.SelectContext(ctx, &ids, s.dialect.Steps.SelectExpired, state, now, batch)
			if err == nil && len(ids) > 0 {
				err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
					query, args, err := s.dialect.In(s.dialect.Steps.DeleteSteps, now, ids)
					if err == nil {
						_, err = tx.ExecContext(ctx, query, args...)
					}
					return err
				})
			}
			if err != nil {
				return fmt.Errorf("purge steps: %w", err)
			}
			if len(ids) < batch {
				break
			}
		}
	}
	return nil
}
