package tests_test

import (
	"fmt"
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/incident"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestANight: one night is mended by the command alone. tests/browser mends it by the dashboard. docs/a-night.md is
// what they show; -update writes it.
func TestANight(t *testing.T) {
	testdb.Turn(t, 1, long)
	t.Parallel()
	n := night{incident.New(t)}
	n.status(incident.Wrong...)
	n.BrokerIsBack()
	n.RelayIsKilled()
	n.status("no relay runs")
	n.first("outbox", "shards")
	n.RelayIsStarted()

	group := n.find(n.run(0, "list", "--groups").out, `(?m)^ *(\d+) +1000 +billing`)
	n.HandlerIsMended()
	retry := []string{"retry", "--all-matching", "--group", group}
	n.run(2, retry...)
	n.run(0, append(retry, "--reason", incident.HasOwners, "--by", "ada", "--yes")...)
	n.Await(0, `SELECT COUNT(*) FROM millrace_messages WHERE error_group = ?`, group)

	n.Say(incident.NeverSent)
	n.run(0, "waiting")
	skip := []string{"skip-gap", "projection", "cart-7"}
	missing := n.find(n.run(2, skip...).err, `--missing (\S+)`)
	n.run(0, append(skip, "--missing", missing, "--reason", incident.Skipped, "--by", "ada", "--yes")...)

	parked := n.run(0, "list", "--status", "parked", "--consumer", "mail")
	row := n.find(parked.out, `(?m)^ *(\d+) +mail`)
	n.Say(incident.NotTheSame)
	n.run(0, "retry", row, "--reason", incident.AnotherOrder, "--by", "ada", "--yes")

	n.run(0, "resume", "shipping", "--reason", incident.StockIsTaken, "--by", "ada", "--yes")
	n.run(0, "purge", "--yes")
	n.Over()
	n.status("Nothing is wrong")
	n.run(0, "audit", "--limit", "5")
	n.Compare("../../../docs/a-night.md", "By the command", *update)
}

// night is mended by the command.
type night struct{ *incident.Night }

// run calls the command, tells what it said, and asserts how it ended.
func (n night) run(code int, args ...string) result {
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
func (n night) status(problems ...string) {
	n.Helper()
	table := n.first("status")
	for _, p := range problems {
		assert.Contains(n, table, p)
	}
}

// first is run for the first table of what is printed.
func (n night) first(args ...string) string {
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
	seconds = regexp.MustCompile(` +(?:\dm)?\d+s\n`)
	minutes = regexp.MustCompile(`(\dh)[23]\dm`)
)

func (n night) console(text string) {
	text = seconds.ReplaceAllStringFunc(same(text), func(age string) string { return strings.Repeat(" ", len(age)-2) + "…\n" })
	text = minutes.ReplaceAllString(text, "${1}30m")
	n.Say("```console\n" + text + "```")
}

// find returns what a pattern finds in a text.
func (n night) find(text, pattern string) string {
	n.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(n, found, "%s is not in\n%s", pattern, text)
	return html.UnescapeString(found[1])
}
