package tests_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestANight: one night is mended by the command alone, and by the dashboard's pages alone. docs/a-night.md is what
// they show; -update writes it.
func TestANight(t *testing.T) {
	t.Parallel()
	const file = "../../../docs/a-night.md"
	var told strings.Builder
	told.WriteString(nightIntroduction)
	for _, part := range []struct {
		name string
		mend func(*night)
	}{{"By the command", byCommand}, {"By the dashboard", byPages}} {
		t.Run(part.name, func(t *testing.T) {
			n := newNight(t)
			n.say("## " + part.name)
			part.mend(n)
			told.WriteString(n.told.String())
		})
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(told.String()), 0o644)) //nolint:gosec // a document
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run with -update")
	assert.Equal(t, string(want), told.String())
}

const nightIntroduction = `# A night

For anyone who is on call: one night, in which seven things go wrong at once, found and mended twice: by the
[command](command.md) alone and by the pages of the [dashboard](dashboard.md) alone. The
[runbook](runbook.md) has a section for each alert. A test makes this night happen on PostgreSQL and compares this page with what it sees, without times.

- The broker refuses connections. Later the only relay is killed.
- A thousand orders fail in billing, each with the number of its account in the error.
- The projection waits for a version of a cart that its producer skipped.
- Two different messages come to mail under one id.
- Shipping was paused during the day, and forgotten.
- No process has run the janitor for days.

What is not Millrace is mended by whoever runs it: the broker, the process of the relay, the handler, and a service without its plugin.
`

// night is a service in which much is wrong.
type night struct {
	*stuck.Service
	told   strings.Builder
	broker rig.Publisher
	kill   func() // the relay
	pages  http.Handler
}

func newNight(t *testing.T) *night {
	t.Helper()
	db := testdb.On(t, "postgres")
	n := &night{Service: stuck.New(t, db, inbox.Config{WithoutPlugin: true})}
	n.Idle = true
	n.broker.FailWith(errors.New("dial tcp: connection refused"))
	n.relay("shop-1")
	n.Serve("billing")
	n.Serve("mail")
	n.Serve("shipping")
	n.Serve("projection", millrace.VersionGate{}.Middleware)
	n.Put("billing", stuck.Order(1, ""), stuck.Order(2, ""), stuck.Order(3, ""))
	n.handled(3)
	n.DB.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - ?`, (8 * day).Microseconds())
	n.DB.Do(t, `UPDATE millrace_consumers SET created_at = created_at - ?`, (9*day + time.Hour).Microseconds())

	n.Put("mail", stuck.Order(1, ""))
	n.handled(4)
	other := stuck.Order(1, "")
	other.Payload = []byte(`{"order":1,"customer":"another"}`)
	n.Put("mail", other)
	n.Await(1, `SELECT COUNT(*) FROM millrace_messages WHERE status = 6`)
	for _, version := range []int64{1, 2, 4} {
		msg := stuck.Order(100+int(version), "")
		outbox.Stamp(msg, "cart-7", version)
		n.Put("projection", msg)
	}
	n.Put("shipping", stuck.Order(9, ""))
	n.handled(7)
	n.Await(1, `SELECT COUNT(*) FROM millrace_messages WHERE status = 7`)
	require.NoError(t, admin.New(n.Store).Pause(t.Context(), "shipping", 0, admin.Operator{Name: "grace", Reason: "stocktaking"}))
	n.Put("shipping", stuck.Order(1, ""), stuck.Order(2, ""))
	var poison []*message.Message
	for i := range 1000 {
		poison = append(poison, stuck.Order(1000+i, fmt.Sprintf("account %d has no owner", 1000+i)))
	}
	n.Put("billing", poison...)
	n.Await(1000, `SELECT COUNT(*) FROM millrace_messages WHERE status = 5`)
	n.Await(1, `SELECT COUNT(*) FROM millrace_outbox_relays WHERE broker_error IS NOT NULL`)
	n.later()
	return n
}

// handled waits until so many messages are.
func (n *night) handled(all int) {
	n.Helper()
	n.Await(all, `SELECT COUNT(*) FROM millrace_claims WHERE result = 1`)
}

// later has three hours and a half pass.
func (n *night) later() {
	n.Helper()
	us := (3*time.Hour + 30*time.Minute).Microseconds()
	n.DB.Do(n.T, `UPDATE millrace_messages SET received_at = received_at - ?`, us)
	n.DB.Do(n.T, `UPDATE millrace_outbox SET created_at = created_at - ?`, us)
	n.DB.Do(n.T, `UPDATE millrace_audit SET at = at - ?`, us)
}

// relay runs one on connections of its own, so that it can be killed: without them it cannot say that it ends.
func (n *night) relay(name string) {
	n.Helper()
	db := n.DB.Open(n.T)
	relay, err := outbox.NewRelay(db.DB, &n.broker, outbox.RelayConfig{Name: name})
	require.NoError(n, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(n.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = relay.Run(ctx) // how it ends is not what this is about
	}()
	n.kill = func() {
		_ = db.Close()
		stop()
		<-ended
	}
	n.Cleanup(n.kill)
}

func (n *night) brokerIsBack() {
	n.Helper()
	n.say("The broker is restarted. The relay finds that out by itself, and sends what waited.")
	n.broker.FailWith(nil)
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox WHERE status < 3`)
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox_relays WHERE broker_error IS NOT NULL`)
}

func (n *night) relayIsKilled() {
	n.Helper()
	n.say("Then the kernel kills the relay for want of memory, and the next invoice stays.")
	n.kill()
	require.NoError(n, n.Outbox.Publish("invoices", message.NewMessage("the next", []byte("{}"))))
	n.DB.Do(n.T, `UPDATE millrace_outbox_relays SET until = until - ?`, (2*time.Hour + 30*time.Minute).Microseconds()) // its lease ends
}

func (n *night) relayIsStarted() {
	n.Helper()
	n.say("It is started again.")
	n.relay("shop-2")
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox WHERE status < 3`)
}

func (n *night) handlerIsMended() {
	n.Helper()
	n.say("The accounts get their owners back.")
	n.Mended.Store(true)
}

func (n *night) say(text string) { n.told.WriteString("\n" + text + "\n") }

func byCommand(n *night) {
	n.status("the broker is out for relay shop-1", "billing: account ? has no owner", "projection: an earlier version is missing",
		"mail: same key", "shipping: paused by grace: stocktaking", "no janitor")
	n.brokerIsBack()
	n.relayIsKilled()
	n.status("no relay runs")
	n.first("outbox", "shards")
	n.relayIsStarted()

	group := n.find(n.run(0, "list", "--groups").out, `(?m)^ *(\d+) +1000 +billing`)
	n.handlerIsMended()
	retry := []string{"retry", "--all-matching", "--group", group}
	n.run(2, retry...)
	n.run(0, append(retry, "--reason", "the accounts have owners", "--by", "ada", "--yes")...)
	n.Await(0, `SELECT COUNT(*) FROM millrace_messages WHERE error_group = ?`, group)

	n.say("The projection can do without version 3: its producer says that there never was one.")
	n.run(0, "waiting")
	skip := []string{"skip-gap", "projection", "cart-7"}
	missing := n.find(n.run(2, skip...).err, `--missing (\S+)`)
	n.run(0, append(skip, "--missing", missing, "--reason", "the producer skipped it", "--by", "ada", "--yes")...)

	parked := n.run(0, "list", "--status", "parked", "--consumer", "mail")
	row := n.find(parked.out, `(?m)^ *(\d+) +mail`)
	n.say("It is another order, whose producer gave it a used id: it is to be handled as a message of its own.")
	n.run(0, "retry", row, "--reason", "another order under a used id", "--by", "ada", "--yes")

	n.run(0, "resume", "shipping", "--reason", "the stock is taken", "--by", "ada", "--yes")
	n.run(0, "purge", "--yes")
	n.mended()
	n.status("Nothing is wrong")
	n.run(0, "audit", "--limit", "5")
}

// mended waits until everything is handled, and sent.
func (n *night) mended() {
	n.Helper()
	n.Await(0, `SELECT COUNT(*) FROM millrace_messages`)
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox WHERE status < 3`)
	sent := map[string]bool{}
	for _, m := range n.broker.Messages() {
		sent[m.UUID] = true
	}
	const few = 7 // orders 1, 2, 3, 9, 101, 102 and 104; consumers share some, and an invoice has its order's UUID
	assert.Equal(n, few+1000+len([]string{"the next"}), len(sent), "each invoice is sent")
}

// run calls the command, tells what it said, and asserts how it ended.
func (n *night) run(code int, args ...string) result {
	n.Helper()
	r := call(n.T, n.DB.DSN, args...)
	require.Equal(n, code, r.code, r.out+r.err)
	text := "$ millrace " + quoted(args) + "\n" + r.out
	if r.err != "" {
		text += "--- stderr\n" + r.err
	}
	if code != 0 {
		text += fmt.Sprintf("--- exit %d\n", code)
	}
	n.console(text)
	return r
}

// status tells what is wrong, and asserts that it says so.
func (n *night) status(problems ...string) {
	n.Helper()
	table := n.first("status")
	for _, p := range problems {
		assert.Contains(n, table, p)
	}
}

// first is run for the first table of what is printed.
func (n *night) first(args ...string) string {
	n.Helper()
	r := call(n.T, n.DB.DSN, args...)
	require.Zero(n, r.code, r.err)
	table, _, more := strings.Cut(r.out, "\n\n")
	if more {
		table += "\n\n…\n"
	}
	n.console("$ millrace " + quoted(args) + "\n" + table)
	return table
}

// Ages that differ from run to run: seconds, and the minutes of half an hour.
var (
	seconds = regexp.MustCompile(` +\d+s\n`)
	minutes = regexp.MustCompile(`(\dh)[23]\dm`)
)

func (n *night) console(text string) {
	text = seconds.ReplaceAllStringFunc(same(text), func(age string) string { return strings.Repeat(" ", len(age)-2) + "…\n" })
	text = minutes.ReplaceAllString(text, "${1}30m")
	n.say("```console\n" + text + "```")
}

// find returns what a pattern finds in a text.
func (n *night) find(text, pattern string) string {
	n.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(n, found, "%s is not in\n%s", pattern, text)
	return html.UnescapeString(found[1])
}
