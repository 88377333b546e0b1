package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// RetryAll does what [Publisher.Retry] does for one parked message for all on the way to topic, or for
// all if topic is "". It takes those that were parked before the call, each once, and skips those that
// somebody else changed first. After each it calls progress, unless that is nil, with the number of
// messages done. It returns that number, also with an error or at the end of ctx: another call does the
// rest. The audit has one entry of it, with a row for each message.
func (p *Publisher) RetryAll(ctx context.Context, topic string, by Operator, progress func(done int)) (retried int, err error) {
	return p.decideAll(ctx, topic, "retry", p.sql.RetryParked, by, progress)
}

// DiscardAll does for all what [Publisher.Discard] does for one parked message. It works like
// [Publisher.RetryAll].
func (p *Publisher) DiscardAll(ctx context.Context, topic string, by Operator, progress func(done int)) (discarded int, err error) {
	return p.decideAll(ctx, topic, "discard", p.sql.DropParked, by, progress)
}

func (p *Publisher) decideAll(
	ctx context.Context, topic, action, statement string, by Operator, progress func(done int),
) (done int, err error) {
	bulk := stored.Bulk{ID: stored.BulkID(new(int64)), By: stored.Operator(by), Action: "outbox " + action, Which: "parked messages"}
	if topic != "" {
		bulk.Which += fmt.Sprintf(", to topic %q", topic)
	}
	if err = by.validate(); err == nil {
		err = p.eachParked(ctx, topic, func(row parkedRow) error {
			if err := p.changeInBulk(ctx, row, statement, bulk); err != nil {
				return err
			}
			if done++; progress != nil {
				progress(done)
			}
			return nil
		})
	}
	if done > 0 {
		p.Wake()
	}
	if err != nil {
		return done, errorf("%s parked messages, %d done: %w", action, done, database.Explain(err))
	}
	return done, nil
}

// eachParked calls change for each message to topic that is parked now, and goes on where somebody else was faster.
func (p *Publisher) eachParked(ctx context.Context, topic string, change func(parkedRow) error) error {
	const page = 100
	if _, live := p.db.Live(ctx); live {
		return errors.New("not in a handler's transaction: it would hold every message until its end")
	}
	var now int64
	if err := p.db.GetContext(ctx, &now, p.db.Dialect.Now); err != nil {
		return err
	}
	for after, more := int64(0), true; more; {
		var rows []parkedRow
		if err := p.db.SelectContext(ctx, &rows, p.sql.ListParked, after, page); err != nil {
			return err
		}
		for _, row := range rows {
			after = row.ID
			if topic != "" && row.Topic != topic || row.ParkedAt > now {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			err := change(row)
			if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrWrongState) {
				return fmt.Errorf("message %d: %w", row.ID, err)
			}
		}
		more = len(rows) == page
	}
	return nil
}

// changeInBulk changes a message, and finishes even if ctx ends: nobody would know whether its commit was cut off.
func (p *Publisher) changeInBulk(ctx context.Context, row parkedRow, statement string, bulk stored.Bulk) error {
	const most = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	return p.db.Write(ctx, func(tx *sqlx.Tx) error {
		if err := p.changeParked(ctx, tx, statement, row.ID); err != nil {
			return err
		}
		return bulk.Audit(ctx, tx, p.db.Dialect, stored.Changed{MessageID: keycode.Encode(row.UUID), Detail: row.detail()})
	})
}
