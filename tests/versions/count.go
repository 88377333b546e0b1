package main

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"
	"strings"
)

// test is one test or subtest.
type test struct {
	name   string
	action string // the last one: pass, fail, skip, or what it was in the middle of
	said   strings.Builder
	asked  bool // for a database
	parent bool
}

// results are the tests of a package, and what it said beside them.
type results struct {
	tests map[string]*test
	said  strings.Builder
}

// read collects what test2json tells.
func read(events io.Reader) (*results, error) {
	all := &results{tests: map[string]*test{}}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var e struct{ Action, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		if e.Test == "" {
			all.said.WriteString(e.Output)
			continue
		}
		t := all.tests[e.Test]
		if t == nil {
			t = &test{name: e.Test}
			all.tests[e.Test] = t
		}
		if e.Action != "output" {
			t.action = e.Action
			continue
		}
		t.said.WriteString(e.Output)
		t.asked = t.asked || strings.Contains(e.Output, "testdb: a database in ")
	}
	for name := range all.tests {
		for i, c := range name {
			if above := all.tests[name[:i]]; c == '/' && above != nil {
				above.parent = true
			}
		}
	}
	return all, lines.Err()
}

// failed are the tests that failed by themselves, or never ended.
func (r *results) failed() []*test {
	var failed []*test
	for _, t := range r.tests {
		if t.action != "pass" && t.action != "skip" && (!t.parent || !r.failedBelow(t)) {
			failed = append(failed, t)
		}
	}
	slices.SortFunc(failed, func(a, b *test) int { return strings.Compare(a.name, b.name) })
	return failed
}

func (r *results) failedBelow(above *test) bool {
	for name, t := range r.tests {
		if strings.HasPrefix(name, above.name+"/") && t.action != "pass" && t.action != "skip" {
			return true
		}
	}
	return false
}

// count is how many tests there were without subtests.
type count struct{ passed, failed int }

func (c *count) add(other count) {
	c.passed += other.passed
	c.failed += other.failed
}

// counted counts tests: where database is true, the passed ones that had a database, in themselves or above.
func counted(r *results, database bool) count {
	c := count{failed: len(r.failed())}
	for _, t := range r.tests {
		if t.action == "pass" && !t.parent && (!database || r.asked(t.name)) {
			c.passed++
		}
	}
	return c
}

func (r *results) asked(name string) bool {
	for {
		if t := r.tests[name]; t != nil && t.asked {
			return true
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return false
		}
		name = name[:i]
	}
}
