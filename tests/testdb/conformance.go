package testdb

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Body is one behaviour that must hold on every database.
type Body struct {
	Name string // says the behaviour, unique: "duplicate after success"
	Why  string // the rule that is broken when it fails; shown then
	Run  func(t *testing.T, db *DB)
	On   []Option // how its database is made
	// Not has, by driver, why the body cannot hold there.
	Not map[string]string
}

// Conformance runs every body on every database as the subtests Name/postgres,
// Name/mysql and Name/sqlite, in parallel and after it has returned, and prints a
// line for each. Then it fails t when one did not run: a skip is allowed only for
// a database that is missing while MILLRACE_TEST_ALL is unset, or for what -run or
// -skip left out by hand.
func Conformance(t *testing.T, bodies []Body) {
	t.Helper()
	var runs []*run
	t.Cleanup(func() { // after the last of the subtests
		if deselected() {
			t.Logf("conformance: only a selection ran, the count is not checked")
			return
		}
		for _, problem := range shortfall(bodies, Dialects(), runs, All()) {
			t.Errorf("conformance: %s", problem)
		}
	})
	for _, b := range bodies {
		var of []*run
		for _, s := range systems {
			of = append(of, &run{body: b.Name, dialect: s.dialect, result: absent})
		}
		runs = append(runs, of...)
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			for i, s := range systems {
				t.Run(s.dialect, func(t *testing.T) {
					t.Parallel()
					conform(t, b, s, of[i])
				})
			}
		})
	}
}

type result string

const (
	ok      result = "ok"
	failed  result = "FAILED"
	skipped result = "SKIPPED BY ITS BODY"
	absent  result = "no database"
	refused result = "NOT WITH THIS DRIVER"
)

// run is what became of one body on one database.
type run struct {
	body, dialect string
	result        result
}

func conform(t *testing.T, b Body, s *system, r *run) {
	t.Helper()
	entered := false
	defer func() {
		switch {
		case t.Failed():
			r.result = failed
			t.Logf("%s\nwhy: %s", b.Name, b.Why)
		case entered && t.Skipped():
			r.result = skipped
		case entered:
			r.result = ok
			ran(t, "conformance bodies", s.named())
		}
		fmt.Printf("conformance: %s × %s: %s\n", b.Name, s.named(), r.result)
	}()
	if why := b.Not[s.tested()]; why != "" {
		r.result = refused
		t.Logf("not with %s: %s", s.named(), why)
		return
	}
	db := On(t, s.dialect, b.On...)
	entered = true
	b.Run(t, db)
}

// shortfall says what kept bodies × dialects from having run in full. all
// forbids databases that are missing.
func shortfall(bodies []Body, dialects []string, runs []*run, all bool) []string {
	var problems []string
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
	}
	if len(bodies) == 0 {
		add("there are no bodies")
	}
	seen := map[string]bool{}
	for _, b := range bodies {
		if seen[b.Name] {
			add("two bodies are named %q", b.Name)
		}
		seen[b.Name] = true
		for _, d := range dialects {
			switch i := slices.IndexFunc(runs, func(r *run) bool {
				return r.body == b.Name && r.dialect == d
			}); {
			case i < 0:
				add("%s × %s did not run", b.Name, d)
			case runs[i].result == skipped:
				add("%s × %s skipped itself", b.Name, d)
			case runs[i].result == absent && all:
				add("%s × %s had no database", b.Name, d)
			}
		}
	}
	if want := len(bodies) * len(dialects); len(runs) != want {
		add("%d runs, want %d bodies × %d databases = %d", len(runs), len(bodies), len(dialects), want)
	}
	return problems
}

// Dialects are those of all databases.
func Dialects() []string {
	names := make([]string, len(systems))
	for i, s := range systems {
		names[i] = s.dialect
	}
	return names
}

// deselected reports whether -run or -skip reaches into subtests.
func deselected() bool {
	for _, name := range []string{"test.run", "test.skip"} {
		f := flag.Lookup(name)
		if f != nil && strings.Contains(f.Value.String(), "/") {
			return true
		}
	}
	return false
}
