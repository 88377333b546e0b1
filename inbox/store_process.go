package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace-go/millrace/internal/build"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// presence is the row that lists this Store among the processes.
type presence struct {
	mu      sync.Mutex
	runs    int       // of the background work
	beaten  time.Time // when the row was last written; zero: there is none
	serves  string    // what the row says
	failing bool      // the last write failed, which was logged

	key    []any // of the row
	itself []any // what the row says of the process
}

// leaveWait bounds the deletion of the row, for which the end of the service does not wait long.
const leaveWait = time.Second

// processKept is how long the table keeps a process that is no longer heard of.
const processKept = time.Hour

// come counts a run of the background work.
func (p *presence) come() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs++
}

// introduce finds out what the row says of the process.
func (p *presence) introduce(c *Config) {
	text := func(t string) []byte { return []byte(t[:min(len(t), maxName)]) }
	host, _ := os.Hostname() //nolint:errcheck // then it is not known
	b := build.Read()
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // tells Stores apart, keeps no secret
	p.key = []any{[]byte(c.Namespace), []byte(c.Process), token}
	p.itself = []any{text(host), os.Getpid(), text(b.Program), []byte(c.Version), text(b.Millrace)}
}

// beat writes the row: every few seconds, and if the Store serves other consumers than before.
func (s *Store) beat(ctx context.Context) {
	if ctx.Err() != nil {
		return // leave follows
	}
	p := &s.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	all := s.serving() //nolint:contextcheck // it only asks a logger for its level
	serves, now := stored.EncodeServings(all), time.Now()
	if serves == p.serves && now.Sub(p.beaten) < activityPause/2 {
		return
	}
	if p.key == nil {
		p.introduce(&s.config)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards) // what is cut off may be written after leave
	defer cancel()
	said := []any{len(all), []byte(serves), now.Sub(s.work.created).Microseconds()}
	_, err := s.db.Exec(ctx, s.dialect.BeatProcess, slices.Concat(p.key, p.itself, said)...)
	if err == nil {
		p.beaten, p.serves, p.failing = now, serves, false
		return
	}
	if !p.failing && !errors.Is(err, context.DeadlineExceeded) { // the pool may have no connection to spare
		p.failing = true
		s.log.Error("inbox: the list of processes could not be written; tried again, said once", database.Explain(err), nil)
	}
}

// leave ends a run of the background work, and deletes the row if no other goes on. If that fails, the row stays until
// a janitor deletes it.
func (s *Store) leave(ctx context.Context) {
	p := &s.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs--; p.runs > 0 || p.key == nil {
		return
	}
	p.beaten = time.Time{}
	ctx, cancel := context.WithTimeout(ctx, leaveWait)
	defer cancel()
	_, _ = s.db.Exec(ctx, s.dialect.LeaveProcess, p.key...) //nolint:errcheck // the janitor of another process mends it
}

// serving lists the consumers that have a handler or a queue in this Store.
func (s *Store) serving() []stored.Serving {
	list, all := []stored.Serving{}, make(map[stored.Name]stored.Serving)
	s.mu.Lock()
	for name, c := range s.consumers {
		all[name] = stored.Serving{Handler: c.config.Handler, Batch: c.batches != nil, Gate: c.gated.Load() || c.gate.Load() != nil}
	}
	for name := range s.bells {
		serving := all[name]
		serving.Queue = true
		all[name] = serving
	}
	s.mu.Unlock()
	add := func(name stored.Name, serving stored.Serving) {
		serving.Consumer, serving.Epoch = name.Name, name.Epoch
		if serving.Handler == name.Name {
			serving.Handler = ""
		}
		serving.Handler = serving.Handler[:min(len(serving.Handler), maxName)]
		list = append(list, serving)
	}
	for name, serving := range all {
		add(name, serving)
	}
	leases := s.Leases()
	leases.mu.Lock()
	for name, c := range leases.consumers {
		add(name, stored.Serving{Handler: c.config.Handler, Leases: true})
	}
	leases.mu.Unlock()
	slices.SortStableFunc(list, stored.Serving.Compare) // one of the inbox and one of leases may have the same name
	return list
}

// purgeProcesses deletes processes that are no longer heard of.
func (j *janitor) purgeProcesses(ctx context.Context, now int64) error {
	_, err := j.store.db.Exec(ctx, j.store.dialect.PurgeProcesses, now-processKept.Microseconds())
	return err
}
