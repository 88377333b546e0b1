package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// logDropped stores a row about a copy that was acked without running the handler, best effort.
func (s *Store) logDropped(d *delivery, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), afterwards)
	defer cancel()
	if d.replayed {
		reason = fmt.Sprintf("%s; replayed by %.200q", reason, d.replay)
	}
	if partition, offset := s.position(d.msg); partition.Valid {
		reason += ", at " + positionOf(d.topic, partition, offset).String()
	}
	reg, err := d.consumer.register(ctx)
	if err == nil {
		err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, s.dialect.InsertDropped, reg.ID, d.id, []byte(d.topic), []byte(reason))
			return err
		})
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		d.log().Error("inbox: the dropped copy could not be logged", err, nil)
	}
}
