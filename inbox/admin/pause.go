package admin

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Pause stops the queues of all processes from delivering the consumer's stored messages until
// [Admin.Resume]; meanwhile pubsub.Durable stores the messages that arrive. Running handlers
// finish. Queues of other processes notice the pause at their next Poll. A newer epoch is not
// paused.
func (a *Admin) Pause(ctx context.Context, consumer string, epoch int, by Operator) error {
	return a.setPaused(ctx, consumer, epoch, by, true, "pause")
}

// Resume ends a [Admin.Pause].
func (a *Admin) Resume(ctx context.Context, consumer string, epoch int, by Operator) error {
	return a.setPaused(ctx, consumer, epoch, by, false, "resume")
}

func (a *Admin) setPaused(ctx context.Context, consumer string, epoch int, by Operator, paused bool, action string) error {
	if err := by.Validate(); err != nil {
		return err
	}
	row, err := a.rows.Consumer(ctx, consumer, epoch)
	if err == nil {
		err = a.rows.Write(ctx, func(tx *sqlx.Tx) error {
			if _, err := tx.ExecContext(ctx, a.rows.Dialect.Remedy.PauseConsumer, paused, row.ID); err != nil {
				return err
			}
			return a.rows.AuditOf(ctx, tx, by, action, row.ID, []byte{}, "what is stored for the consumer")
		})
	}
	if err != nil {
		return fmt.Errorf("inbox: %s consumer %q: %w", action, consumer, database.Explain(err))
	}
	a.inbox.Decided(by, action, watermill.LogFields{"consumer": consumer, "epoch": epoch})
	a.inbox.PauseChanged(stored.Name{Name: consumer, Epoch: epoch})
	return nil
}
