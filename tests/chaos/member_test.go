package chaos_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql" // registers "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"

	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
)

// membership is what a member is started with.
type membership struct {
	Name        string
	Driver, DSN string
	RabbitMQ    string
	Mode        pubsub.Mode
	Produces    bool
	Faulty      bool // handlers and the broker fail now and then
}

// memberName is a member's among the programs that the test binary can be.
const memberName = "CHAOS_MEMBER"

// tally is the kind of event that tells what a member has counted so far.
const tally = "tally"

// member is the process.
type member struct {
	*process.Child
	membership
}

// serve serves until a SIGTERM. A service that stops by itself is told of as one that closed
// with an error, and started again by the test.
func serve(c *process.Child, settings membership) error {
	m := &member{c, settings}
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer end()
	m.Say(process.Event{Kind: process.Ready})
	s := m.start(ctx)
	if s == nil {
		return nil
	}
	go m.report(ctx, s)
	err := s.run(ctx)
	m.Say(process.Event{Kind: tally, Counts: s.counts()})
	m.Closed(err, nil)
	return nil
}

// start tries until the broker can be reached, or ctx ends.
func (m *member) start(ctx context.Context) *service {
	for ctx.Err() == nil {
		s, err := newService(m.membership)
		if err == nil {
			return s
		}
		fmt.Fprintln(os.Stderr, err)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// report tells what was counted, often enough that little is lost with a kill.
func (m *member) report(ctx context.Context, s *service) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var told map[string]int
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if counts := s.counts(); !maps.Equal(counts, told) {
			m.Say(process.Event{Kind: tally, Counts: counts})
			told = counts
		}
	}
}
