// Command mutants breaks Millrace on purpose, one rule at a time, and runs the tests that
// guard the rule. It fails where they stay green.
//
//	go run ./tests/mutants           all of them
//	go run ./tests/mutants settle    those with settle in their names
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	caught, all := 0, 0
	sound := map[guard]error{}
	for _, m := range mutants {
		if len(os.Args) > 1 && !strings.Contains(m.name, os.Args[1]) {
			continue
		}
		all++
		began := time.Now()
		if _, known := sound[m.by]; !known {
			sound[m.by] = m.by.sound()
		}
		red, output, err := false, "", sound[m.by]
		if err == nil {
			red, output, err = m.try()
		}
		switch {
		case err != nil:
			fmt.Printf("ERROR   %s: %v\n%s", m.name, err, output)
		case red:
			caught++
			fmt.Printf("caught  %s, by %s, %v\n", m.name, m.by, time.Since(began).Round(time.Second))
		default:
			fmt.Printf("MISSED  %s: %s stays green\n", m.name, m.by)
		}
	}
	fmt.Printf("%d of %d caught\n", caught, all)
	if caught < all {
		os.Exit(1)
	}
}

// mutant is one rule of Millrace, broken.
type mutant struct {
	name string
	file string // from the root of the module
	old  string // occurs there once
	new  string
	by   guard
}

// guard is the tests that must go red.
type guard struct{ pkg, run string }

func (g guard) String() string { return g.run + " of " + g.pkg }

// sound returns why the tests say nothing of what is broken: they are red anyway, or none.
func (g guard) sound() error {
	text, err := g.goTest("-run=" + g.run)
	if err == nil && strings.Contains(text, "no tests to run") {
		err = errors.New("there are none")
	}
	if err != nil {
		return fmt.Errorf("the tests %s, with nothing broken: %w\n%s", g, err, text)
	}
	return nil
}

// exhaust is a service of tests/exhaust on SQLite.
func exhaust(service string) guard {
	return guard{"./tests/exhaust", "TestEveryFaultAtEveryPoint/sqlite/^" + service + "$"}
}

// steps is a service of tests/exhaust that does something outside of its transaction, on SQLite.
func steps(service string) guard {
	return guard{"./tests/exhaust", "TestStepsWithEveryFault/sqlite/^" + service + "$"}
}

// stepBody is a body of TestSteps, on SQLite.
func stepBody(name string) guard {
	return guard{"./tests", "TestSteps/^" + strings.ReplaceAll(name, " ", "_") + "$/sqlite"}
}

// conformance is a body of the conformance suite on SQLite.
func conformance(body string) guard {
	return guard{"./tests", "TestConformance$/^" + strings.ReplaceAll(body, " ", "_") + "$/sqlite"}
}

// apply returns the file with the rule broken.
func (m mutant) apply(source string) (string, error) {
	if n := strings.Count(source, m.old); n != 1 {
		return "", fmt.Errorf("what it replaces occurs %d times in %s: the code has moved on, and the mutant must too", n, m.file)
	}
	return strings.Replace(source, m.old, m.new, 1), nil
}

// patience is how long a broken Millrace may keep a test waiting, which is red as well.
const patience = 5 * time.Minute

// try runs the tests that must go red, with the file replaced for the compiler alone.
func (m mutant) try() (red bool, output string, err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return false, "", err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is a temporary directory
	source, err := os.ReadFile(filepath.FromSlash(m.file))
	if err != nil {
		return false, "", err
	}
	broken, err := m.apply(string(source))
	if err != nil {
		return false, "", err
	}
	file, err := filepath.Abs(m.file)
	if err != nil {
		return false, "", err
	}
	replacement := filepath.Join(dir, filepath.Base(m.file))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: replacement}})
	if err != nil {
		return false, "", err
	}
	listed := filepath.Join(dir, "overlay.json")
	if err := errors.Join(os.WriteFile(replacement, []byte(broken), 0o600), os.WriteFile(listed, overlay, 0o600)); err != nil {
		return false, "", err
	}
	if text, err := m.by.goTest("-overlay="+listed, "-run=^$"); err != nil {
		return false, text, errors.New("it does not compile")
	}
	text, err := m.by.goTest("-overlay="+listed, "-run="+m.by.run)
	return err != nil, text, nil
}

func (g guard) goTest(flags ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args := append([]string{"test", "-count=1"}, flags...)
	test := exec.CommandContext(ctx, "go", append(args, g.pkg)...) //nolint:gosec // the mutants' own
	test.Env = append(os.Environ(), "MILLRACE_TEST_LONG=1", "MILLRACE_TEST_PATIENCE=30s")
	text, err := test.CombinedOutput()
	return string(text), err
}
