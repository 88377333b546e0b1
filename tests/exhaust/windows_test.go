package exhaust_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

var update = flag.Bool("update", false, "write the tables of docs/crash-windows.md")

const windowsFile = "../../docs/crash-windows.md"

// The marks between which the tables of the file are.
const (
	tablesBegin = "<!-- from here on written by: go test ./tests/exhaust -run TestCrashWindows -update -->\n"
	tablesEnd   = "<!-- to here -->\n"
)

// window is a service with few messages, so that each point of it can be told.
type window struct {
	title   string
	counts  bool // what is done does not depend on how far the background came
	relayed bool // but for what is published, which the relay may not have written off
	service service
}

var windows = []window{
	{"`Inbox`, a handler that returns a message", true, false, service{inputs: payments[:1], want: oneBooked, wire: services["Inbox"].wire}},
	{"`Inbox` with an outbox", true, true, service{inputs: payments[:1], want: oneBooked, wire: services["Inbox and outbox"].wire}},
	{"`Inbox.Before` with a step, a provider that honours keys", true, false, service{
		mails: true, inputs: payments[:1], want: oneBooked, wire: stepServices["Before, a provider that honours keys"].wire,
	}},
	{"`VersionGate` that holds: m1 is version 2, m2 is version 1", false, false, service{
		inputs: inboxtest.To("payments", payment("a2", "ada", "5", 2), payment("a1", "ada", "5", 1)),
		want:   []account{{"ada", 10, "a1 a2"}, {"bob", 0, ""}}, order: true,
		wire: services["VersionGate that holds"].wire,
	}},
	{"`Durable`, `StoreOnFailure`, a handler that fails once", false, false, service{inputs: payments[:1], want: oneBooked, wire: failsOnce}},
	{"`Durable`, `StoreFirst`", false, false, service{inputs: payments[:1], want: oneBooked, wire: services["Durable, storing first"].wire}},
}

var oneBooked = []account{{"ada", 10, "a1"}, {"bob", 0, ""}}

// failsOnce is a service whose handler fails at the first run of each process.
func failsOnce(p *inboxtest.Process, store *inbox.Store) error {
	sub, err := durable(store, pubsub.StoreOnFailure).Decorate(p.Subscriber)
	if err != nil {
		return err
	}
	var once sync.Once
	p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout}.Middleware)
	p.Router.AddHandler("book", "payments", sub, "receipts", p.Publisher, func(msg *message.Message) ([]*message.Message, error) {
		produced, err := book(msg)
		once.Do(func() { err = errors.Join(err, errOnce) })
		return produced, err
	})
	return nil
}

var errOnce = errors.New("fails once")

// tally counts what a service does in a play in which it dies at a point.
type tally struct {
	dies string

	mu                    sync.Mutex
	handed, run, produced int
}

func (c *tally) add(n *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n++
}

// counted is the scenario of s, with what it does counted.
func (c *tally) counted(s service) inboxtest.Scenario {
	count := func(n *int) message.HandlerMiddleware {
		return func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				c.add(n)
				return next(msg)
			}
		}
	}
	wire := s.wire
	s.wire = func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(count(&c.handed))
		if err := wire(p, store); err != nil {
			return err
		}
		p.Router.AddMiddleware(count(&c.run))
		return nil
	}
	scenario := s.scenario()
	scenario.Produced = func(topic string, msg *message.Message) string {
		c.add(&c.produced)
		return topic + " " + string(msg.Payload)
	}
	return scenario
}

// TestCrashWindows has a process of a service die at each point of a delivery, on SQLite, and
// compares what happened with its table in docs/crash-windows.md. Each day it is one of them.
func TestCrashWindows(t *testing.T) {
	testdb.Turn(t, 2, seconds)
	t.Parallel()
	text, err := os.ReadFile(windowsFile)
	require.NoError(t, err)
	before, rest, begins := strings.Cut(string(text), tablesBegin)
	written, after, ends := strings.Cut(rest, tablesEnd)
	require.True(t, begins && ends, "the marks are missing")
	if *update {
		var tables strings.Builder
		for _, w := range windows {
			tables.WriteString(w.table(t))
		}
		text := before + tablesBegin + tables.String() + "\n" + tablesEnd + after
		require.NoError(t, os.WriteFile(windowsFile, []byte(text), 0o644)) //nolint:gosec // a document
		return
	}
	assert.Equal(t, len(windows), strings.Count(written, "\n### "), "tables")
	for _, w := range testdb.Sample(t, 1, windows) {
		_, found, _ := strings.Cut(written, w.heading())
		found, _, _ = strings.Cut(found, "\n###")
		assert.Equal(t, strings.TrimSpace(w.table(t)), strings.TrimSpace(w.heading()+found),
			"write it again: go test ./tests/exhaust -run TestCrashWindows -update")
	}
}

func (w window) heading() string { return "\n### " + w.title + "\n\n" }

// table plays the cases of a service and tells what happened in each.
func (w window) table(t *testing.T) string {
	t.Helper()
	var table strings.Builder
	table.WriteString(w.heading())
	usual, cases := die(t, w.title, w.service)
	if !w.counts {
		table.WriteString("Died: ")
		for i, c := range cases {
			table.WriteString(strings.Repeat(", ", min(i, 1)) + c.dies)
		}
		table.WriteString(".\n")
		return table.String()
	}
	table.WriteString("| The process dies | handed out | handler runs | published |\n|---|---|---|---|\n")
	for _, c := range append([]*tally{usual}, cases...) {
		published := strconv.Itoa(c.produced)
		if w.relayed && c.produced > 0 {
			published = "1 or more"
		}
		fmt.Fprintf(&table, "| %s | %d | %d | %s |\n", c.dies, c.handed, c.run, published)
	}
	return table.String()
}

// die plays a case for each point at which a process of s can die.
func die(t *testing.T, title string, s service) (usual *tally, cases []*tally) {
	t.Helper()
	usual = &tally{dies: "never"}
	for _, fault := range inboxtest.Faults(t, usual.counted(s)) {
		dies, is := strings.CutPrefix(fault, "crash ")
		if is && !strings.Contains(fault, " work ") { // what comes by itself has tests of its own
			cases = append(cases, &tally{dies: dies})
		}
	}
	// A stored message may be run before its delivery is acknowledged.
	slices.SortStableFunc(cases, func(a, b *tally) int {
		return strings.Count(a.dies, "stored ") - strings.Count(b.dies, "stored ")
	})
	t.Run(title, func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.dies, func(t *testing.T) {
				t.Parallel()
				plays, most := 1, 0
				if strings.HasPrefix(c.dies, "before ") && strings.HasSuffix(c.dies, " ACK") {
					plays = 5 // what was published may just have been settled; the table tells the most
				}
				for range plays {
					c.handed, c.run, c.produced = 0, 0, 0
					inboxtest.Replay(t, c.counted(s), "crash "+c.dies)
					c.handed, c.run = c.handed-usual.handed, c.run-usual.run
					most = max(most, c.produced-usual.produced)
				}
				c.produced = most
			})
		}
	})
	return usual, cases
}

// TestCrashWindowsNamed looks for each point at which a real process is killed, and for each test that is
// named, so that the rest of the document holds too.
func TestCrashWindowsNamed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(windowsFile)
	require.NoError(t, err)
	for file, usual := range map[string]int{
		"../process/lines.go": 10, "../outbox/relayproc/settings.go": 18, "../durable/points_test.go": 11,
	} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		points := regexp.MustCompile(`Point += "(.+)"`).FindAllStringSubmatch(string(source), -1)
		assert.GreaterOrEqual(t, len(points), usual, file)
		for _, point := range points {
			if point[1] != string(process.FirstRun) {
				assert.Contains(t, string(text), "| "+point[1]+" |", "a point of %s", file)
			}
		}
	}
	for _, named := range regexp.MustCompile("`(tests/[a-z]*)/?`, `(Test[A-Za-z]+)`").FindAllStringSubmatch(string(text), -1) {
		files, err := filepath.Glob("../../" + strings.TrimSuffix(named[1], "/") + "/*_test.go")
		require.NoError(t, err)
		assert.True(t, slices.ContainsFunc(files, func(file string) bool {
			source, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(source), "func "+named[2]+"(")
		}), "%s has no %s", named[1], named[2])
	}
}
