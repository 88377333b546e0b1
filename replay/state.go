package replay

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
)

// State says whether a replay goes on.
type State string

// States of a replay.
const (
	Running   State = "running" // or interrupted: nobody knows before it is gone on with
	Done      State = "done"
	Cancelled State = "cancelled"
)

var states = map[int]State{
	dialect.ReplayRunning: Running, dialect.ReplayDone: Done, dialect.ReplayCancelled: Cancelled,
}

// Spec is what was asked for, but for what only the process knows.
type Spec struct {
	Source          string   `json:"source"`
	Target          string   `json:"target"`
	Consumer        string   `json:"consumer,omitempty"` // of a queue …
	Epoch           int      `json:"epoch,omitempty"`    // … and its epoch
	Filter          Filter   `json:"filter,omitzero"`
	IntoSideEffects []string `json:"into_side_effects,omitempty"`
}

func (r *Request) spec() Spec {
	s := Spec{Source: r.From.kind(), Target: r.To.kind(), Filter: r.Filter, IntoSideEffects: slices.Clone(r.IntoSideEffects)}
	slices.Sort(s.IntoSideEffects)
	s.Filter.Since, s.Filter.Until = s.Filter.Since.UTC(), s.Filter.Until.UTC() // one instant is one text
	if only := r.To.only(); only != nil {
		s.Consumer, s.Epoch = only.Consumer, only.Epoch
	}
	return s
}

// Status is how far a replay is.
type Status struct {
	Name       string
	State      State
	Spec       Spec
	By         admin.Operator
	Sent       int   // messages so far
	Skipped    int   // whose payload or metadata cannot be had
	Reached    int64 // the id of the source up to which it was read …
	LastID     int64 // … and the last that is meant
	StartedAt  time.Time
	MovedAt    time.Time // when it last went on
	FinishedAt time.Time // zero while it runs

	row int64
}

type replayRow struct {
	ID         int64         `db:"id"`
	Name       []byte        `db:"name"`
	Source     []byte        `db:"source"`
	Spec       []byte        `db:"spec"`
	Reached    int64         `db:"reached"`
	LastID     int64         `db:"last_id"`
	Sent       int           `db:"sent"`
	Skipped    int           `db:"skipped"`
	State      int           `db:"state"`
	Actor      []byte        `db:"actor"`
	Reason     []byte        `db:"reason"`
	StartedAt  int64         `db:"started_at"`
	MovedAt    int64         `db:"moved_at"`
	FinishedAt sql.NullInt64 `db:"finished_at"`
}

func (r *replayRow) status() (Status, error) {
	s := Status{
		Name: string(r.Name), State: states[r.State], By: admin.Operator{Name: string(r.Actor), Reason: string(r.Reason)},
		Sent: r.Sent, Skipped: r.Skipped, Reached: r.Reached, LastID: r.LastID, row: r.ID,
		StartedAt: time.UnixMicro(r.StartedAt).UTC(), MovedAt: time.UnixMicro(r.MovedAt).UTC(),
	}
	if r.FinishedAt.Valid {
		s.FinishedAt = time.UnixMicro(r.FinishedAt.Int64).UTC()
	}
	if err := json.Unmarshal(r.Spec, &s.Spec); err != nil {
		return s, fmt.Errorf("what replay %q is about: %w", s.Name, err)
	}
	return s, nil
}

// Status returns how far the replay of this name is, and [ErrNotFound] where there is none.
func (p *Replayer) Status(ctx context.Context, name string) (Status, error) {
	s, err := p.status(ctx, p.db, name)
	return s, explain(name, err)
}

func (p *Replayer) status(ctx context.Context, db sqlx.QueryerContext, name string) (Status, error) {
	var row replayRow
	err := sqlx.GetContext(ctx, db, &row, p.db.Dialect.Replays.SelectReplay, p.namespace, []byte(name))
	if errors.Is(err, sql.ErrNoRows) {
		return Status{}, ErrNotFound
	}
	if err != nil {
		return Status{}, err
	}
	return row.status()
}

// List returns replays of the namespace, the last that was begun first, at most limit.
func (p *Replayer) List(ctx context.Context, limit int) ([]Status, error) {
	var rows []replayRow
	if err := p.db.SelectContext(ctx, &rows, p.db.Dialect.Replays.ListReplays, p.namespace, limit); err != nil {
		return nil, fmt.Errorf("replay: list: %w", err)
	}
	all := make([]Status, 0, len(rows))
	for _, row := range rows {
		s, err := row.status()
		if err != nil {
			return nil, fmt.Errorf("replay: list: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

// Cancel ends a replay for good: whoever sends it stops after its batch. What was sent stays sent.
func (p *Replayer) Cancel(ctx context.Context, name string, by admin.Operator) error {
	if by.Name == "" || by.Reason == "" {
		return explain(name, errors.New("an operator needs a Name and a Reason, which are kept"))
	}
	err := p.db.WriteFound(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		if err := p.audit(ctx, tx, by, "replay cancelled", name, ""); err != nil {
			return err
		}
		s, err := p.status(ctx, tx, name)
		if err != nil {
			return err
		}
		if s.State != Running {
			return fmt.Errorf("it is %s", s.State)
		}
		return p.end(ctx, tx, s, dialect.ReplayCancelled)
	})
	return explain(name, err)
}

func (p *Replayer) end(ctx context.Context, tx *sqlx.Tx, s Status, state int) error {
	result, err := tx.ExecContext(ctx, p.db.Dialect.Replays.EndReplay, state, s.row)
	return one(result, err)
}

// one is [ErrTaken] where a statement did not change its row.
func one(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, ErrTaken)
	}
	return nil
}

// audit keeps what was decided, beside what is decided about the outbox: it has no consumer.
func (p *Replayer) audit(ctx context.Context, tx *sqlx.Tx, by admin.Operator, action, name, detail string) error {
	const bytes = 120 // fit the column
	id := name[:min(len(name), bytes)]
	_, err := tx.ExecContext(ctx, p.db.Dialect.InsertAudit, []byte(by.Name), []byte(action), []byte(by.Reason), 0, []byte(id), []byte(detail))
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

func explain(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("replay %q: %w", name, err)
}
