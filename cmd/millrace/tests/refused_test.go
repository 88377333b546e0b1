package tests_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// refused are wrong calls, and what the command says of each.
var refused = []struct {
	says string
	args []string
}{
	{"--before -1h lies in the future", []string{"audit", "prune", "--before", "-1h"}},
	{"--before 2999-01-01 lies in the future", []string{"audit", "prune", "--before", "2999-01-01"}},
	{"--before 0001-01-01 is the zero time", []string{"audit", "prune", "--before", "0001-01-01"}},
	{"--before is empty", []string{"audit", "prune", "--before", ""}},
	{"--until -2h lies in the future", []string{"discard", "--all-matching", "--until", "-2h"}},
	{"--until 0001-01-01 is the zero time", []string{"discard", "--all-matching", "--until", "0001-01-01"}},
	{"--since 0001-01-01T01:00:00+01:00 is the zero time", []string{"discard", "--all-matching", "--since", "0001-01-01T01:00:00+01:00"}},
	{"--consumer is empty", []string{"discard", "--all-matching", "--consumer", ""}},
	{"--status is empty", []string{"discard", "--all-matching", "--status", ""}},
	{"--status held: millrace discard takes failed_retryable, failed_terminal, parked", []string{"discard", "--all-matching", "--status", "held"}},
	{"--status received: millrace retry takes failed_retryable, failed_terminal, parked", []string{"retry", "--all-matching", "--status", "received"}},
	{"--topic is empty", []string{"discard", "--all-matching", "--topic="}},
	{"--since is empty", []string{"retry", "--all-matching", "--since", ""}},
	{"--until is empty", []string{"retry", "--all-matching", "--until", ""}},
	{"--context is empty", []string{"discard", "--all-matching", "--context", ""}},
	{"--topic is empty", []string{"outbox", "discard", "--all-matching", "--topic", ""}},
	{"--consumer is empty", []string{"redispatch", "--consumer", ""}},
	{"--until -1h lies in the future", []string{"replay", "run", "may", "--from", "archive", "--until", "-1h"}},
	{`--group -1 is no group`, []string{"list", "--group", "-1"}},
	{`--group -1 is no group`, []string{"discard", "--all-matching", "--group", "-1"}},
	{`--group 0 is no group`, []string{"discard", "--all-matching", "--group", "0"}},
	{`which replay? its name is empty`, []string{"replay", "run", "", "--from", "archive"}},
	{`"x" is not the id of a step`, []string{"steps", "decide", "x", "--done"}},
	{`--timeout 0s leaves no time`, []string{"discard", "7", "--timeout", "0"}},
	{`--timeout -1s leaves no time`, []string{"discard", "--all-matching", "--timeout", "-1s"}},
	{"--topic is empty", []string{"replay", "run", "may", "--from", "archive", "--topic", ""}},
	{"--limit -1 is negative", []string{"replay", "run", "may", "--from", "sql", "--queue", "poison", "--limit", "-1"}},
	{"--idle -5s is negative", []string{"replay", "run", "may", "--from", "sql", "--queue", "poison", "--idle", "-5s"}},
}

// TestWrongCallsChangeNothing: a minus, a zero time or an empty variable of the shell is no filter.
func TestWrongCallsChangeNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.serve()
	require.Zero(t, s.run("discard", "7", "--reason", "an entry of the audit", "--yes").code)
	before := s.fingerprint()
	for _, c := range refused {
		args := c.args
		if args[0] != "list" {
			args = append(args, "--reason", "x", "--yes")
		}
		r := s.run(args...)
		assert.Equal(t, 2, r.code, "%q: %s", c.args, r.out)
		assert.Contains(t, r.err, "millrace: "+c.says, "%q", c.args)
		assert.Equal(t, before, s.fingerprint(), "%q changed something", c.args)
	}
	for says, args := range map[string][]string{
		"--by is empty":             {"audit", "--by", ""},
		"leave out --limit, which":  {"audit", "-o", "csv", "--limit", "1"},
		"leave out --before, which": {"audit", "-o", "csv", "--before", "7"},
		"leave out --after, which":  {"audit", "1", "-o", "csv", "--after", "1"},
	} {
		r := s.run(args...)
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, says)
	}
	assert.Zero(t, s.run("audit", "prune", "--before", "0s", "--reason", "x", "--yes").code, "that is now")
}
