// Command projection keeps a projection of accounts that is fed by a stream of changes,
// shuffled, doubled, and with holes that are repaired later; once without a VersionGate and
// once with each of its policies. It shows how far each projection is from the truth.
//
// service.go is what a user of Millrace writes; the other files make its life hard.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// policy is what the service does about the order of changes.
type policy struct {
	name   string
	gate   *millrace.VersionGate
	handle message.NoPublishHandlerFunc
}

var policies = []policy{
	{"no gate", nil, post},
	{"Latest", &millrace.VersionGate{OnGap: inbox.GapLatest}, show},
	{"Fail", &millrace.VersionGate{OnGap: inbox.GapFail}, post},
	{"Hold", &millrace.VersionGate{}, post},
}

// columns of the table, and what a counter calls them.
var columns = []struct{ title, what string }{
	{"deliveries", "delivered"},
	{"redelivered", "nacked"},
	{"duplicates", "duplicate"},
	{"stale", "stale"},
	{"held", "held"},
	{"parked", "parked"},
	{"applied", "completed"},
}

func main() {
	if err := demo(); err != nil {
		fmt.Fprintln(os.Stderr, "projection:", err)
		os.Exit(1)
	}
}

func demo() error {
	dir, err := os.MkdirTemp("", "millrace-projection-")
	if err != nil {
		return err
	}
	s := newStream()
	fmt.Printf("%d changes of %d accounts, sent as %d messages\n\n", accounts*versions, accounts, len(s.deliveries))
	fmt.Printf("%-14s", "policy")
	for _, c := range columns {
		fmt.Printf("%12s", c.title)
	}
	fmt.Printf("%16s%9s\n", "wrong accounts", "seconds")
	for i, p := range policies {
		err = errors.Join(err, p.run(s, filepath.Join(dir, fmt.Sprintf("%d.db", i))))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// patience is how long a policy may take to apply what was sent.
const patience = 2 * time.Minute

// run feeds the stream to a new service and compares its projection with the truth.
func (p policy) run(s *stream, file string) error {
	db, err := open(file)
	if err != nil {
		return err
	}
	began, count := time.Now(), newCounter()
	err = p.feed(db, s, count)
	took := time.Since(began)
	differences, failed := wrong(db, s.truth)
	p.print(count, differences, took)
	if err := errors.Join(err, failed, db.Close()); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if p.gate != nil && differences > 0 {
		return fmt.Errorf("%s: %d accounts are wrong", p.name, differences)
	}
	return nil
}

// feed sends the stream to a new service and waits until all is done.
func (p policy) feed(db *sqlx.DB, s *stream, count *counter) error {
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	config := inbox.Config{Observers: []inbox.Observer{count}}
	router, store, err := newService(db, counted{broker, count}, p.gate, p.handle, config)
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	select {
	case err := <-stopped: // it did not start
		return err
	case <-router.Running():
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = s.send(ctx, broker)
	if err == nil {
		err = count.await(ctx, func() bool { return p.done(s, count) })
	}
	err = errors.Join(err, router.Close(), <-stopped)

	ctx, cancel = context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(err, store.Close(ctx))
}

// done reports whether every message was acked and, unless the newest is enough, every
// change applied: what was held is applied after its message was acked.
func (p policy) done(s *stream, count *counter) bool {
	if count.of("acked") < len(s.deliveries) {
		return false
	}
	newest := p.gate != nil && p.gate.OnGap == inbox.GapLatest
	return newest || count.of("completed")+count.of("parked") >= accounts*versions
}

func (p policy) print(count *counter, differences int, took time.Duration) {
	fmt.Printf("%-14s", p.name)
	for _, c := range columns {
		fmt.Printf("%12d", count.of(c.what))
	}
	fmt.Printf("%16d%9.1f\n", differences, took.Seconds())
}
