package admin

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// FailureGroup is a group of messages whose last errors have one shape.
type FailureGroup struct {
	ErrorGroup int64  // as [Filter] takes it, or NoError
	Shape      string // of the errors, with question marks where they differ
	Error      string // the error of the message that was received last
	Messages   int
	AtLeast    bool // not all rows were read, so there may be more messages
	Consumers  []string
	First      time.Time // when the first message was received …
	Last       time.Time // … and the last
}

// How many groups of one consumer and state are read at most, and how many rows of it, or of one
// consumer if a group is given.
const (
	mostGroups  = 1000
	mostGrouped = 100_000
)

type groupRow struct {
	Group    lenient `db:"group_id"`
	Messages int     `db:"failures"`
	First    lenient `db:"first_at"`
	Last     lenient `db:"last_at"`
	Example  int64   `db:"example"`
}

// lenient is a number. It is 0 where somebody put something else into the column, which SQLite allows.
type lenient int64

// Scan implements sql.Scanner.
func (m *lenient) Scan(src any) error {
	var n sql.NullInt64
	if err := n.Scan(src); err != nil {
		n.Int64 = 0
	}
	*m = lenient(n.Int64)
	return nil
}

// FailureGroups returns the groups of failed messages, the most frequent first. If f has no Status,
// it reads messages that will be tried again, that failed terminally, and that were parked after an
// error. For each consumer and state it reads the 100,000 rows that were stored last; if f names a
// group, that many of the group.
//
// Two errors belong to one group if their first lines differ only in quoted texts, numbers, times,
// hex numbers, UUIDs and other ids. Text beyond 200 bytes does not count.
func (a *Admin) FailureGroups(ctx context.Context, f Filter) ([]FailureGroup, error) {
	return a.failureGroups(ctx, f, grouping{states: f.statuses(FailedRetryable, FailedTerminal, Parked), look: mostGrouped})
}

// StuckGroups returns the groups of messages that wait for an operator, the most frequent first.
// Messages without an error, such as collisions, are the group [NoError], whose Error is the reason of
// the message that was received last. StuckGroups reads the newest look rows of each consumer and state.
func (a *Admin) StuckGroups(ctx context.Context, look int) ([]FailureGroup, error) {
	return a.failureGroups(ctx, Filter{}, grouping{states: []Status{FailedTerminal, Parked}, look: look, rest: true})
}

// NoError is the group of messages without an error. No Filter takes it: 0 would select all messages.
const NoError = -1

// grouping says which rows are grouped.
type grouping struct {
	states []Status
	look   int  // how many rows of a consumer and a state to read
	rest   bool // rows without an error are a group too
}

func (a *Admin) failureGroups(ctx context.Context, f Filter, by grouping) ([]FailureGroup, error) {
	groups, err := a.grouped(ctx, f, by)
	if err != nil {
		return nil, fmt.Errorf("inbox: group failures: %w", database.Explain(err))
	}
	return groups, nil
}

func (a *Admin) grouped(ctx context.Context, f Filter, by grouping) ([]FailureGroup, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	consumers, err := a.matching(ctx, f)
	if err != nil {
		return nil, err
	}
	groups, examples, cut := make(map[int64]*FailureGroup), make(map[int64]int64), false
	for _, c := range consumers {
		rows, partly, err := a.groupRows(ctx, c.ID, f, by)
		if err != nil {
			return nil, err
		}
		cut = cut || partly
		for _, row := range rows {
			id := int64(row.Group)
			if groups[id] == nil {
				groups[id] = &FailureGroup{ErrorGroup: id}
			}
			groups[id].add(row, string(c.Name))
			examples[id] = max(examples[id], row.Example)
		}
	}
	all := make([]FailureGroup, 0, len(groups))
	for _, g := range groups {
		g.AtLeast = cut
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b FailureGroup) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.ErrorGroup, b.ErrorGroup))
	})
	all = all[:min(len(all), mostGroups)]
	return all, a.exemplify(ctx, all, examples)
}

// groupRows reads the groups of one consumer, and reports whether there may be more.
func (a *Admin) groupRows(ctx context.Context, consumer int32, f Filter, by grouping) (all []groupRow, cut bool, err error) {
	read := func(statement string, args ...any) error {
		var rows []groupRow
		if err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, statement, append(f.bounds(), args...)...); err != nil {
			return err
		}
		looked := 0
		for _, row := range rows {
			looked += row.Messages
			if row.Group != 0 || by.rest {
				all = append(all, row)
			}
		}
		cut = cut || looked >= by.look || len(rows) >= mostGroups
		return nil
	}
	if f.ErrorGroup != 0 {
		err = read(a.rows.Dialect.Remedy.GroupFailure, by.states[0], by.states[len(by.states)-1], consumer, f.ErrorGroup, by.look)
		return all, cut, err
	}
	for _, status := range by.states {
		if err := read(a.rows.Dialect.Remedy.GroupFailures, consumer, status, by.look, mostGroups); err != nil {
			return nil, false, err
		}
	}
	return all, cut, nil
}

func (g *FailureGroup) add(row groupRow, consumer string) {
	first, last := time.UnixMicro(int64(row.First)).UTC(), time.UnixMicro(int64(row.Last)).UTC()
	if g.Messages == 0 || first.Before(g.First) {
		g.First = first
	}
	if last.After(g.Last) {
		g.Last = last
	}
	g.Messages += row.Messages
	if !slices.Contains(g.Consumers, consumer) {
		g.Consumers = append(g.Consumers, consumer)
	}
}

// exemplify sets the error of each group from its example, unless that was handled meanwhile.
func (a *Admin) exemplify(ctx context.Context, groups []FailureGroup, examples map[int64]int64) error {
	if len(groups) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(groups))
	for _, g := range groups {
		ids = append(ids, examples[g.ErrorGroup])
	}
	query, args, err := a.rows.Dialect.In(a.rows.Dialect.Remedy.SelectErrors, ids)
	if err != nil {
		return err
	}
	var rows []stored.Message
	if err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, query, args...); err != nil {
		return err
	}
	errors := make(map[int64]string)
	for _, row := range rows {
		errors[row.ErrorGroup.Int64] = cmp.Or(string(row.LastError), string(row.Reason))
	}
	for i := range groups {
		groups[i].Error = errors[groups[i].ErrorGroup]
		groups[i].Shape = stored.Shape(groups[i].Error)
		if groups[i].ErrorGroup == 0 {
			groups[i].ErrorGroup = NoError
		}
	}
	return nil
}
