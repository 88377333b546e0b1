package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// activityKept is how long the table keeps the activity.
const activityKept = 24 * time.Hour

// tally counts what this process did for one consumer and has not written yet.
type tally struct {
	completed, failed, duplicates, stale, held, parked, handling atomic.Int64

	saidForgotten, saidStray sync.Once
}

// counters are in the order of the arguments of AddActivity.
func (t *tally) counters() [7]*atomic.Int64 {
	return [...]*atomic.Int64{&t.completed, &t.failed, &t.duplicates, &t.stale, &t.held, &t.parked, &t.handling}
}

// ran counts a run of the handler, and the time since it began.
func (t *tally) ran(result *atomic.Int64, began time.Time) {
	result.Add(1)
	t.handling.Add(time.Since(began).Microseconds())
}

// tallies are the tallies of all consumers that this process knows.
type tallies struct {
	mu  sync.Mutex
	all map[stored.Name]*tally

	writing sync.Mutex
	failing bool // the last write failed, which was logged
}

func (t *tallies) of(name stored.Name) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[stored.Name]*tally)
	}
	if t.all[name] == nil {
		t.all[name] = new(tally)
	}
	return t.all[name]
}

// figures are the counts taken out of a tally.
type figures struct {
	name  stored.Name
	of    *tally
	count [7]int64
}

// take empties the tallies in which something was counted. It sorts them, so that two processes
// that write them cannot deadlock.
func (t *tallies) take() (taken []figures) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, of := range t.all {
		f := figures{name: name, of: of}
		for i, counter := range of.counters() {
			f.count[i] = counter.Swap(0)
		}
		if f.count != [7]int64{} {
			taken = append(taken, f)
		}
	}
	slices.SortFunc(taken, func(a, b figures) int {
		if a.name.Name == b.name.Name {
			return a.name.Epoch - b.name.Epoch
		}
		return strings.Compare(a.name.Name, b.name.Name)
	})
	return taken
}

func (f figures) putBack() {
	for i, counter := range f.of.counters() {
		counter.Add(f.count[i])
	}
}

// activityPause is how long figures are collected before they are written.
const activityPause = 10 * time.Second

// writeActivity adds the new counts to the table. If that fails, it keeps them for the next time.
func (s *Store) writeActivity(ctx context.Context) {
	t := &s.tallies
	t.writing.Lock()
	defer t.writing.Unlock()
	taken := t.take()
	if len(taken) == 0 {
		return
	}
	err := s.addActivity(ctx, taken)
	if err == nil {
		t.failing = false
		return
	}
	for _, f := range taken {
		f.putBack()
	}
	if ctx.Err() == nil && !t.failing {
		t.failing = true
		s.log.Error("inbox: the activity could not be written; tried again, said once", database.Explain(err), nil)
	}
}

func (s *Store) addActivity(ctx context.Context, all []figures) error {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	return s.db.Write(ctx, func(tx *sqlx.Tx) error {
		for _, f := range all {
			args := make([]any, 0, len(f.count)+3)
			for _, n := range f.count {
				args = append(args, n)
			}
			args = append(args, []byte(s.config.Namespace), []byte(f.name.Name), f.name.Epoch)
			if _, err := tx.ExecContext(ctx, s.dialect.AddActivity, args...); err != nil {
				return fmt.Errorf("add the activity of consumer %q: %w", f.name.Name, err)
			}
		}
		return nil
	})
}

// purgeActivity deletes activity that is older than activityKept.
func (j *janitor) purgeActivity(ctx context.Context, now int64) error {
	err := j.deleteAll(ctx, j.store.dialect.PurgeActivity, now-activityKept.Microseconds())
	if err != nil {
		return fmt.Errorf("delete old activity: %w", err)
	}
	return nil
}
