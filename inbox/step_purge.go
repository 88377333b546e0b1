package inbox

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

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
