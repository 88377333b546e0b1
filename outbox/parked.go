package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// Parked is a message that relays no longer try to send.
type Parked struct {
	ID       int64 // in the outbox
	Topic    string
	OrderKey string
	Message  *message.Message
	Attempts int
	Error    string // of the last attempt
	At       time.Time
}

// Operator is who decides about a parked message, and why.
type Operator struct {
	Name   string
	Reason string
}

func (o Operator) validate() error {
	if o.Name == "" || o.Reason == "" {
		return errors.New("the Operator needs a Name and a Reason, which the audit table keeps")
	}
	return nil
}

type parkedRow struct {
	letterRow
	EventType *string `db:"event_type"`
	LastError *string `db:"last_error"`
	ParkedAt  int64   `db:"parked_at"`
}

// Parked lists at most limit parked messages after the given id, in the order in which they
// were stored. The limit is 1 or more. A message whose metadata cannot be read is listed without
// metadata.
func (p *Publisher) Parked(ctx context.Context, after int64, limit int) ([]Parked, error) {
	return p.listParked(ctx, p.sql.SelectParked, after, limit)
}

// ListParked is [Publisher.Parked] without reading the payloads.
func (p *Publisher) ListParked(ctx context.Context, after int64, limit int) ([]Parked, error) {
	return p.listParked(ctx, p.sql.ListParked, after, limit)
}

// FindParked returns the parked message with this id, without its payload. It returns
// [ErrNotFound] if there is no such message, and [ErrWrongState] if it is not parked.
func (p *Publisher) FindParked(ctx context.Context, id int64) (Parked, error) {
	row, err := p.find(ctx, p.db.Reader(ctx), p.sql.ListParked, id)
	if err != nil {
		return Parked{}, errorf("message %d: %w", id, database.Explain(err))
	}
	return row.parked(), nil
}

// find reads the parked row with this id by statement, which is SelectParked or ListParked.
func (p *Publisher) find(ctx context.Context, db sqlx.QueryerContext, statement string, id int64) (row parkedRow, err error) {
	err = sqlx.GetContext(ctx, db, &row, statement, id-1, 1)
	if errors.Is(err, sql.ErrNoRows) || err == nil && row.ID != id {
		err = p.notParked(ctx, db, id)
	}
	return row, err
}

func (p *Publisher) listParked(ctx context.Context, statement string, after int64, limit int) ([]Parked, error) {
	if limit < 1 {
		return nil, fmt.Errorf("outbox: list parked messages: limit %d is less than 1", limit)
	}
	var rows []parkedRow
	if err := sqlx.SelectContext(ctx, p.db.Reader(ctx), &rows, statement, after, limit); err != nil {
		return nil, fmt.Errorf("outbox: list parked messages: %w", database.Explain(err))
	}
	all := make([]Parked, 0, len(rows))
	for i := range rows {
		all = append(all, rows[i].parked())
	}
	return all, nil
}

func (r *parkedRow) parked() Parked {
	return Parked{
		ID: r.ID, Topic: r.Topic, OrderKey: value(r.OrderKey), Message: r.letter(time.Now()).msg,
		Attempts: r.Attempts, Error: value(r.LastError), At: time.UnixMicro(r.ParkedAt).UTC(),
	}
}

// Reveal returns a parked message with its payload, and records in the audit table who looked
// at it, in the transaction that reads it.
func (p *Publisher) Reveal(ctx context.Context, id int64, by Operator) (Parked, error) {
	var row parkedRow
	err := p.decide(ctx, id, "reveal", by, func(tx *sqlx.Tx) (err error) {
		row, err = p.find(ctx, tx, p.sql.SelectParked, id)
		return err
	})
	if err != nil {
		return Parked{}, err
	}
	return row.parked(), nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Retry has relays try a parked message again, with all of MaxAttempts. The messages behind it
// stay held until it is sent, and it is held itself behind an earlier one that holds back their key.
func (p *Publisher) Retry(ctx context.Context, id int64, by Operator) error {
	return p.decide(ctx, id, "retry", by, func(tx *sqlx.Tx) error {
		return p.changeParked(ctx, tx, p.sql.RetryParked, id)
	})
}

// Discard deletes a parked message, and has relays send the messages held behind it.
func (p *Publisher) Discard(ctx context.Context, id int64, by Operator) error {
	return p.decide(ctx, id, "discard", by, func(tx *sqlx.Tx) error {
		return p.changeParked(ctx, tx, p.sql.DropParked, id)
	})
}

func (p *Publisher) changeParked(ctx context.Context, tx *sqlx.Tx, statement string, id int64) error {
	changed, err := database.Affected(tx.ExecContext(ctx, statement, id))
	if err == nil && changed != 1 {
		err = p.notParked(ctx, tx, id)
	}
	return err
}

// notParked says why no parked message with this id was found: [ErrNotFound] or [ErrWrongState].
func (p *Publisher) notParked(ctx context.Context, db sqlx.QueryerContext, id int64) error {
	var now State
	switch err := sqlx.GetContext(ctx, db, &now, p.sql.SelectState, id); {
	case errors.Is(err, sql.ErrNoRows):
		return ErrNotFound
	case err != nil:
		return err
	case now == Aside:
		return fmt.Errorf("a relay parked it a moment ago: look at it again: %w", ErrWrongState)
	}
	return fmt.Errorf("it is %s, and only %s messages can be retried, discarded or revealed: %w", now, Aside, ErrWrongState)
}

// decide carries out an operator's decision and writes it to the audit table.
func (p *Publisher) decide(
	ctx context.Context, id int64, action string, by Operator, carryOut func(*sqlx.Tx) error,
) error {
	if err := by.validate(); err != nil {
		return errorf("%s message %d: %w", action, id, err)
	}
	row, err := p.find(ctx, p.db.Reader(ctx), p.sql.SelectParked, id)
	if err == nil {
		err = p.db.Write(ctx, func(tx *sqlx.Tx) error {
			if err := p.audit(ctx, tx, row, action, by); err != nil {
				return err
			}
			return carryOut(tx)
		})
	}
	if err != nil {
		return errorf("%s message %d: %w", action, id, database.Explain(err))
	}
	if _, live := p.db.Live(ctx); live {
		ambient.From(ctx).AfterCommit(p, p.Wake)
		return nil
	}
	p.Wake()
	return nil
}

// audit records a decision. It shortens a UUID that is longer than the column.
func (p *Publisher) audit(ctx context.Context, tx *sqlx.Tx, row parkedRow, action string, by Operator) error {
	id := row.UUID[:min(len(row.UUID), keycode.MaxLen)]
	_, err := tx.ExecContext(ctx, p.db.Dialect.InsertAudit, []byte(by.Name), []byte("outbox "+action),
		[]byte(by.Reason), 0, []byte(id), []byte(row.detail()))
	return err
}

// detail describes the message for the audit table, with a UUID that is longer than the column.
func (r *parkedRow) detail() string {
	detail := "to topic " + r.Topic
	if len(r.UUID) >= keycode.MaxLen {
		detail += ", uuid " + r.UUID
	}
	return detail
}
