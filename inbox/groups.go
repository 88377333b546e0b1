package inbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// FailureGroup is what messages have in common whose last errors are of one shape.
type FailureGroup struct {
	ErrorGroup int64  // as [Filter] takes it
	Shape      string // of the errors: what differs between them is a question mark
	Error      string // of one of them, the last that was received
	Messages   int
	Consumers  []string
	First      time.Time // when the first of them was received …
	Last       time.Time // … and the last
}

// mostGroups bounds how many groups of one consumer and state are looked at.
const mostGroups = 1000

type groupRow struct {
	Group    int64 `db:"error_group"`
	Messages int   `db:"failures"`
	First    int64 `db:"first_at"`
	Last     int64 `db:"last_at"`
	Example  int64 `db:"example"`
}

// FailureGroups returns what makes messages fail, the most frequent first. Without a Status
// in f it looks at what is to be tried again, failed terminally, and parked after an error.
// It reads all rows that f matches.
//
// Two errors are of one group when their first lines are the same but for quoted texts,
// numbers, times, hex numbers, UUIDs and other ids. What is beyond 200 bytes does not count.
func (s *Store) FailureGroups(ctx context.Context, f Filter) ([]FailureGroup, error) {
	groups, err := s.failureGroups(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("inbox: group failures: %w", explain(err))
	}
	return groups, nil
}

func (s *Store) failureGroups(ctx context.Context, f Filter) ([]FailureGroup, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	consumers, err := s.matching(ctx, f)
	if err != nil {
		return nil, err
	}
	groups, examples := make(map[int64]*FailureGroup), make(map[int64]int64)
	for _, c := range consumers {
		for _, status := range f.statuses(FailedRetryable, FailedTerminal, Parked) {
			var rows []groupRow
			args := append([]any{c.ID, status}, append(f.bounds(), mostGroups)...)
			if err := sqlx.SelectContext(ctx, s.reader(ctx), &rows, s.dialect.Remedy.GroupFailures, args...); err != nil {
				return nil, err
			}
			for _, row := range rows {
				if groups[row.Group] == nil {
					groups[row.Group] = &FailureGroup{ErrorGroup: row.Group}
				}
				groups[row.Group].add(row, string(c.Name))
				examples[row.Group] = max(examples[row.Group], row.Example)
			}
		}
	}
	all := make([]FailureGroup, 0, len(groups))
	for _, g := range groups {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b FailureGroup) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.ErrorGroup, b.ErrorGroup))
	})
	all = all[:min(len(all), mostGroups)]
	return all, s.exemplify(ctx, all, examples)
}

func (g *FailureGroup) add(row groupRow, consumer string) {
	first, last := time.UnixMicro(row.First).UTC(), time.UnixMicro(row.Last).UTC()
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

// exemplify gives each group the error of its example, unless that was handled meanwhile.
func (s *Store) exemplify(ctx context.Context, groups []FailureGroup, examples map[int64]int64) error {
	if len(groups) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(groups))
	for _, g := range groups {
		ids = append(ids, examples[g.ErrorGroup])
	}
	query, args, err := s.dialect.In(s.dialect.Remedy.SelectErrors, ids)
	if err != nil {
		return err
	}
	var rows []messageRow
	if err := sqlx.SelectContext(ctx, s.reader(ctx), &rows, query, args...); err != nil {
		return err
	}
	errors := make(map[int64]string)
	for _, row := range rows {
		errors[row.ErrorGroup.Int64] = string(row.LastError)
	}
	for i := range groups {
		groups[i].Error = errors[groups[i].ErrorGroup]
		groups[i].Shape = shapeOf(groups[i].Error)
	}
	return nil
}
