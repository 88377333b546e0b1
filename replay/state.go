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

// State says whether a replay is over.
type State string

// States of a replay.
const (
	Running   State = "running" // or interrupted: the database does not tell the two apart
	Done      State = "done"
	Cancelled State = "cancelled"
)

var states = map[int]State{
	dialect.ReplayRunning: Running, dialect.ReplayDone: Done, dialect.ReplayCancelled: Cancelled,
}

// Spec is the part of a request that the database keeps.
type Spec struct {
	Source          string   `json:"source"`
	Target          string   `json:"target"`
	Consumer        string   `json:"consumer,omitempty"` // of the target, if that is a queue
	Epoch           int      `json:"epoch,omitempty"`    // of that consumer
	Filter          Filter   `json:"filter,omitzero"`
	IntoSideEffects []string `json:"into_side_effects,omitempty"`
}

func (r *Request) spec() Spec {
	s := Spec{Source: r.From.kind(), Target: r.To.kind(), Filter: r.Filter, IntoSideEffects: slices.Clone(r.IntoSideEffects)}
	slices.Sort(s.IntoSideEffects)
	s.Filter.Since, s.Filter.Until = s.Filter.Since.UTC(), s.Filter.Until.UTC() // so that specs can be compared as text
	if only := r.To.only(); only != nil {
		s.Consumer, s.Epoch = only.Consumer, only.Epoch
	}
	return s
}

// Status is the progress of a replay.
type Status struct {
	Name       string
	State      State
	Spec       Spec
	By         admin.Operator
	Sent       int   // messages so far
	Skipped    int   // messages whose payload or metadata cannot be read
	Reached    int64 // the id up to which the replay has read the source
	LastID     int64 // the id up to which it will
	StartedAt  time.Time
	MovedAt    time.Time // when it last advanced
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
		return s, fmt.Errorf("read the request of replay %q: %w", s.Name, err)
	}
	return s, nil
}

// Status returns the progress of the replay with this name, or [ErrNotFound].
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

// List returns at most limit replays of the namespace, the latest first. Of a request that cannot be
// read it returns only the source; Status returns the error.
func (p *Replayer) List(ctx context.Context, limit int) ([]Status, error) {
	var rows []replayRow
	if err := p.db.SelectContext(ctx, &rows, p.db.Dialect.Replays.ListReplays, p.namespace, limit); err != nil {
		return nil, fmt.Errorf("replay: list: %w", err)
	}
	all := make([]Status, 0, len(rows))
	for _, row := range rows {
		s, err := row.status()
		if err != nil {
			s.Spec = Spec{Source: string(row.Source)}
		}
		all = append(all, s)
	}
	return all, nil
}

// Cancel ends a replay for good: a process that is running it stops after its batch. Messages that
// were sent stay sent. With [Publisher], Status.Sent does not count a batch that was being sent.
func (p *Replayer) Cancel(ctx context.Context, name string, by admin.Operator) error {
	if by.Name == "" || by.Reason == "" {
		return explain(name, errors.New("the Operator needs a Name and a Reason, which the audit table keeps"))
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
			return fmt.Errorf("it is %s already", s.State)
		}
		return p.end(ctx, tx, s, dialect.ReplayCancelled)
	})
	return explain(name, err)
}

func (p *Replayer) end(ctx context.Context, tx *sqlx.Tx, s Status, state int) error {
	result, err := tx.ExecContext(ctx, p.db.Dialect.Replays.EndReplay, state, s.row)
	return one(result, err)
}

// one returns [ErrTaken] if a statement did not change its row.
func one(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, ErrTaken)
	}
	return nil
}

// audit records a decision. Like those about the outbox, it has no consumer.
func (p *Replayer) audit(ctx context.Context, tx *sqlx.Tx, by admin.Operator, action, name, detail string) error {
	const bytes = 120 // size of the column
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
	return errorf("%q: %w", name, err)
}
