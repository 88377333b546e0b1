package tests_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/testdb"
)

// doubtfulStep is the id of the step that is in doubt.
const doubtfulStep = "73697874-6565-6e20-6279-746573202031"

// looks are calls that change nothing, by the file of what they print.
var looks = []struct {
	name string
	args []string
}{
	{"processes", []string{"processes"}}, // first, because they fall silent
	{"processes-json", []string{"processes", "--json"}},
	{"processes-wide", []string{"processes", "-o", "wide"}},
	{"processes-name", []string{"processes", "web-2/4711", "--limit", "1"}},
	{"processes-none", []string{"processes", "web-3/4711"}},
	{"status", []string{"status"}},
	{"status-json", []string{"status", "--json"}},
	{"list", []string{"list"}},
	{"list-filter", []string{"list", "--consumer", "billing", "--status", "parked", "--limit", "2"}},
	{"list-after", []string{"list", "--status", "PARKED", "--after", "4", "--topic", "orders"}},
	{"list-group", []string{"list", "--group", "5000", "--since", "1000h", "--until", "1h"}},
	{"payload-no-reason", []string{"list", "--status", "failed-terminal", "--payload"}},
	{"list-json", []string{"list", "--status", "failed_terminal", "--json"}},
	{"list-caused-json", []string{"list", "--status", "received", "--after", "1", "--json"}},
	{"list-none", []string{"list", "--topic", "nothing"}},
	{"waiting", []string{"waiting", "--consumer", "billing"}},
	{"waiting-json", []string{"waiting", "--json"}},
	{"waiting-none", []string{"waiting", "--consumer", "mail"}},
	{"skip-gap-proposed", []string{"skip-gap", "billing", "account 17"}},
	{"skip-gap-proposed-json", []string{"skip-gap", "billing", "account 17", "--json"}},
	{"skip-gap-others", []string{"skip-gap", "billing", "account 17", "--missing", "3-4", "--reason", "they are lost", "--yes"}},
	{"skip-gap-unknown", []string{"skip-gap", "billing", "account 18"}},
	{"set-version-proposed", []string{"set-version", "billing", "escaped:account+17", "5", "--reason", "a snapshot"}},
	{"set-version-unknown", []string{"set-version", "billing", "account-18", "4"}},
	{"set-version-new-proposed", []string{"set-version", "billing", "account-18", "4", "--new"}},
	{"set-version-back", []string{"set-version", "billing", "account 17", "2", "--reason", "x", "--yes"}},
	{"redispatch-proposed", []string{"redispatch", "--consumer", "mail"}},
	{"redispatch-proposed-json", []string{"redispatch", id(21), "--json"}},
	{"payload-running", []string{"payload", "replace", "1", "--file", "testdata/corrected.json"}},
	{"payload-proposed", []string{"payload", "replace", "7", "--file", "testdata/corrected.json"}},
	{"payload-proposed-json", []string{"payload", "replace", "7", "--file", "testdata/corrected.json", "--json"}},
	{"payload-unknown", []string{"payload", "replace", "9007199254740993", "--file", "testdata/corrected.json", "--reason", "x", "--yes"}},
	{"payload-held", []string{"payload", "replace", "8", "--file", "testdata/corrected.json", "--reason", "x", "--yes"}},
	{"payload-none", []string{"payload", "replace", "7", "--file", "-", "--reason", "x", "--yes"}},
	{"redispatch-none", []string{"redispatch", "--age", "100h"}},
	{"redispatch-unknown", []string{"redispatch", id(20), "--reason", "its process died", "--yes"}},
	{"audit-none", []string{"audit"}},
	{"groups", []string{"list", "--groups"}},
	{"groups-json", []string{"list", "--groups", "--json"}},
	{"explain-handled", []string{"explain", id(20)}},
	{"explain-outcome", []string{"explain", id(21)}},
	{"explain-caused", []string{"explain", id(2)}},
	{"explain-parked", []string{"explain", id(4)}},
	{"explain-id", []string{"explain", "--id", "4"}},
	{"explain-json", []string{"explain", id(20), "--json"}},
	{"explain-unknown", []string{"explain", "order-17"}},
	{"retry-proposed", []string{"retry", "4", "7"}},
	{"retry-key-proposed", []string{"retry", id(5), "--consumer", "billing", "--reason", "a reason"}},
	{"retry-all-proposed", []string{"retry", "--all-matching", "--consumer", "billing"}},
	{"retry-all-proposed-json", []string{"retry", "--all-matching", "--group", "5000", "--json"}},
	{"retry-not-served", []string{"retry", "4", "--reason", "the bank is back", "--yes"}},
	{"discard-proposed", []string{"discard", "7"}},
	{"purge-proposed", []string{"purge"}},
	{"outbox-list", []string{"outbox", "list"}},
	{"outbox-shards", []string{"outbox", "shards"}},
	{"outbox-retry-proposed", []string{"outbox", "retry", "--all-matching"}},
	{"steps-list", []string{"steps", "list"}},
	{"steps-list-json", []string{"steps", "list", "--json"}},
	{"steps-proposed", []string{"steps", "decide", doubtfulStep, "--done"}},
	{"steps-undecided", []string{"steps", "decide", doubtfulStep}},
	{"steps-unknown", []string{"steps", "decide", "73697874-6565-6e20-6279-746573202039", "--done"}},
	{"steps-done", []string{"steps", "decide", "73697874-6565-6e20-6279-746573202030", "--not-done"}},
	{"migrate-done", []string{"migrate"}},
	{"unknown-consumer", []string{"list", "--consumer", "biling"}},
	{"unknown-epoch", []string{"pause", "mail", "--epoch", "3", "--reason", "x"}},
	{"unknown-status", []string{"list", "--status", "stuck"}},
	{"unknown-row", []string{"retry", "4711"}},
	{"unknown-key", []string{"retry", "4711", "--consumer", "mail"}},
	{"unknown-outbox-row", []string{"outbox", "discard", "4711"}},
	{"outbox-not-parked", []string{"outbox", "discard", "4"}},
	{"unknown-prefix", []string{"explain", "x", "--namespace", "other"}},
	{"no-reason", []string{"retry", "4", "--yes"}},
	{"no-id", []string{"retry", "order-17"}},
	{"filter-and-id", []string{"retry", "4", "--status", "parked"}},
	{"retry-id-proposed", []string{"retry", "--id", "4,7"}},
	{"no-selection", []string{"discard"}},
	{"nothing-matches", []string{"retry", "--all-matching", "--topic", "nothing", "--reason", "x", "--yes"}},
	{"not-discardable", []string{"discard", "8", "--reason", "x", "--yes"}},
	{"wrong-time", []string{"list", "--since", "yesterday"}},
	{"wrong-command", []string{"stauts"}},
	{"wrong-flag", []string{"status", "--wach"}},
}

func TestWhatItShows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		before := s.fingerprint()
		for _, look := range looks {
			golden(t, look.name, look.args, s.run(look.args...))
		}
		assert.Equal(t, before, s.fingerprint(), "something was changed")
	}))
}

// fingerprint is how much there is, and how much was changed.
func (s *shop) fingerprint() (all []int) {
	s.Helper()
	for _, query := range []string{
		`SELECT COUNT(*) FROM millrace_messages`, `SELECT COUNT(*) FROM millrace_claims`,
		`SELECT COUNT(*) FROM millrace_outbox`, `SELECT COUNT(*) FROM millrace_audit`,
		`SELECT SUM(status) FROM millrace_messages`, `SELECT SUM(status) FROM millrace_outbox`,
	} {
		all = append(all, s.count(query))
	}
	return all
}
