package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // registers "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/stretchr/testify/require"

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

const memberVariable = "MILLRACE_TEST_CHAOS_MEMBER"

// tally is the kind of event that tells what a member has counted so far.
const tally = "tally"

// join starts a member.
func join(t testing.TB, m membership) *process.Process {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	return process.Launch(t, binary, memberVariable, m)
}

// memberMain runs a member and ends the process, if this one was started to be one.
func memberMain() {
	text := os.Getenv(memberVariable)
	if text == "" {
		return
	}
	var m membership
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	(&member{membership: m, lines: json.NewEncoder(os.Stdout)}).main()
	os.Exit(0)
}

// member is the process.
type member struct {
	membership

	writing sync.Mutex
	lines   *json.Encoder
}

// main serves until a SIGTERM. A service that stops by itself is told of as one that closed
// with an error, and started again by the test.
func (m *member) main() {
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer end()
	m.say(process.Event{Kind: process.Ready})
	s := m.start(ctx)
	if s == nil {
		return
	}
	go m.report(ctx, s)
	err := s.run(ctx)
	m.say(process.Event{Kind: tally, Counts: s.counts()})
	closed := process.Event{Kind: process.Closed}
	if err != nil {
		closed.Error = err.Error()
	}
	m.say(closed)
}

// start tries until the broker can be reached, or ctx ends.
func (m *member) start(ctx context.Context) *service {
	for ctx.Err() == nil {
		s, err := newService(m.membership) //nolint:contextcheck // it takes none
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
			m.say(process.Event{Kind: tally, Counts: counts})
			told = counts
		}
	}
}

func (m *member) say(e process.Event) {
	m.writing.Lock()
	err := m.lines.Encode(e)
	m.writing.Unlock()
	if err != nil {
		os.Exit(2) // nobody listens any more
	}
}
