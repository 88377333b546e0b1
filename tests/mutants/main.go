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
	"runtime"
	"strings"
	"sync"
	"time"
)

// tried is how many rules are broken at a time for each core: a broken Millrace keeps its test waiting most of the time.
const tried = 2

func main() {
	caught, all := 0, 0
	sound := map[guard]func() error{}
	turns := make(chan struct{}, tried*runtime.NumCPU())
	var told sync.Mutex
	var running sync.WaitGroup
	for _, m := range mutants {
		if len(os.Args) > 1 && !strings.Contains(m.name, os.Args[1]) {
			continue
		}
		all++
		if sound[m.by] == nil {
			sound[m.by] = sync.OnceValue(m.by.sound)
		}
		sound := sound[m.by]
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			began := time.Now()
			red, output, err := false, "", sound()
			if err == nil {
				red, output, err = m.try()
			}
			told.Lock()
			defer told.Unlock()
			switch {
			case err != nil:
				fmt.Printf("ERROR   %s: %v\n%s", m.name, err, output)
			case red:
				caught++
				fmt.Printf("caught  %s, by %s, %v\n", m.name, m.by, time.Since(began).Round(time.Second))
			default:
				fmt.Printf("MISSED  %s: %s stays green\n", m.name, m.by)
			}
		})
	}
	running.Wait()
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
	red, text, err := g.test()
	switch {
	case err != nil:
	case red:
		err = errors.New("they are red")
	case strings.Contains(text, "no tests to run"):
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
const patience = 10 * time.Minute

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
	return m.by.test("-overlay=" + listed)
}

// test builds the tests and runs them.
func (g guard) test(flags ...string) (red bool, output string, err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return false, "", err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is a temporary directory
	program := filepath.Join(dir, "tests")
	args := append([]string{"test", "-c", "-o", program, "-ldflags=-s -w"}, flags...)
	text, err := exec.Command("go", append(args, g.pkg)...).CombinedOutput() //nolint:gosec // the mutants' own
	if err != nil {
		return false, string(text), fmt.Errorf("it does not compile: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	test := exec.CommandContext(ctx, program, "-test.run="+g.run) //nolint:gosec // the mutants' own
	test.Dir = filepath.FromSlash(g.pkg)
	test.WaitDelay = 10 * time.Second // what the test has started may go on
	test.Env = append(os.Environ(), "GOTMPDIR=", "MILLRACE_TEST_LONG=1", "MILLRACE_TEST_PATIENCE=30s")
	text, err = test.CombinedOutput()
	return err != nil, string(text), nil
}
