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
)

// Activity is what one consumer and epoch did in one minute, in all processes of the
// service.
type Activity struct {
	Consumer string
	Epoch    int
	Minute   time.Time // its beginning

	Completed  int64
	Failed     int64 // runs that were rolled back
	Duplicates int64 // copies that were answered without the handler
	Stale      int64 // messages whose version its aggregate was past
	Held       int64 // messages that came before their predecessor
	Parked     int64

	// Handling is the time that the runs took, which were completed or failed.
	Handling time.Duration
}

// ActivityKept is for how long [Store.Activity] is kept.
const ActivityKept = 24 * time.Hour

// Activity lists, by minute, consumer and epoch, what was done since the minute of since. A
// minute in which a consumer did nothing is left out. What a process did is written by
// [Store.Run] every ten seconds, counted for the minute in which it is written, and by
// [Store.Close]; a process that dies takes the last figures with it, and a commit whose answer
// is lost can count twice. Handlers without middleware.Inbox are not counted.
func (s *Store) Activity(ctx context.Context, since time.Time) ([]Activity, error) {
	var rows []activityRow
	err := sqlx.SelectContext(ctx, s.db.Reader(ctx), &rows, s.dialect.SelectActivity,
		since.Truncate(time.Minute).UnixMicro(), []byte(s.config.Namespace))
	if err != nil {
		return nil, fmt.Errorf("inbox: list the activity: %w", database.Explain(err))
	}
	all := make([]Activity, 0, len(rows))
	for _, r := range rows {
		all = append(all, Activity{
			Consumer: string(r.Name), Epoch: r.Epoch, Minute: time.UnixMicro(r.Minute).UTC(),
			Completed: r.Completed, Failed: r.Failed, Duplicates: r.Duplicates,
			Stale: r.Stale, Held: r.Held, Parked: r.Parked,
			Handling: time.Duration(r.Handling) * time.Microsecond,
		})
	}
	return all, nil
}

type activityRow struct {
	Name       []byte `db:"name"`
	Epoch      int    `db:"epoch"`
	Minute     int64  `db:"minute"`
	Completed  int64  `db:"completed"`
	Failed     int64  `db:"failed"`
	Duplicates int64  `db:"duplicates"`
	Stale      int64  `db:"stale"`
	Held       int64  `db:"held"`
	Parked     int64  `db:"parked"`
	Handling   int64  `db:"handling_us"`
}

// tally counts what this process did for one consumer and has not written yet.
type tally struct {
	completed, failed, duplicates, stale, held, parked, handling atomic.Int64
}

// counters are in the order of the arguments of AddActivity.
func (t *tally) counters() [7]*atomic.Int64 {
	return [...]*atomic.Int64{&t.completed, &t.failed, &t.duplicates, &t.stale, &t.held, &t.parked, &t.handling}
}

// ran counts a run of the handler that began then.
func (t *tally) ran(result *atomic.Int64, began time.Time) {
	result.Add(1)
	t.handling.Add(time.Since(began).Microseconds())
}

// tallies are those of all consumers that this process knows.
type tallies struct {
	mu  sync.Mutex
	all map[consumerName]*tally

	writing sync.Mutex
	failing bool // the last write failed, which was logged
}

func (t *tallies) of(name consumerName) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[consumerName]*tally)
	}
	if t.all[name] == nil {
		t.all[name] = new(tally)
	}
	return t.all[name]
}

// figures are what is taken out of a tally.
type figures struct {
	name  consumerName
	of    *tally
	count [7]int64
}

// take empties the tallies in which something was counted, in an order in which no two
// processes can deadlock.
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
		if a.name.name == b.name.name {
			return a.name.epoch - b.name.epoch
		}
		return strings.Compare(a.name.name, b.name.name)
	})
	return taken
}

func (f figures) putBack() {
	for i, counter := range f.of.counters() {
		counter.Add(f.count[i])
	}
}

// activityPause is how long figures are gathered before they are written.
const activityPause = 10 * time.Second

// writeActivity adds to the table what was counted since the last time. What cannot be
// written is kept for the next time.
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
		s.log.Error("inbox: the activity could not be written; tried again, and not told of again", database.Explain(err), nil)
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
			args = append(args, []byte(s.config.Namespace), []byte(f.name.name), f.name.epoch)
			if _, err := tx.ExecContext(ctx, s.dialect.AddActivity, args...); err != nil {
				return fmt.Errorf("add the activity of consumer %q: %w", f.name.name, err)
			}
		}
		return nil
	})
}

// purgeActivity deletes what is older than ActivityKept.
func (j *janitor) purgeActivity(ctx context.Context, now int64) error {
	const batch = 1000
	s := j.store
	for deleted := int64(batch); deleted == batch; {
		err := s.db.Write(ctx, func(tx *sqlx.Tx) (err error) {
			deleted, err = database.Affected(tx.ExecContext(ctx, s.dialect.PurgeActivity, now-ActivityKept.Microseconds(), batch))
			return err
		})
		if err != nil {
			return fmt.Errorf("delete old activity: %w", err)
		}
	}
	return nil
}
