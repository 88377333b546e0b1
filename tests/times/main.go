// Times runs the tests of packages one after the other and tells where their time goes:
//
//	go run ./tests/times [-race] [-slowest 50] package...
//
// For each package: how long it took, the processor time of the test and of all else on the
// machine (servers, other processes), and how long its tests waited for databases of their own.
// For the slowest tests: how long, and the same wait. `make test-times` runs it for all packages.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// packageTimes are those of a package's tests.
type packageTimes struct {
	name                 string
	took, own, elsewhere time.Duration
	databases            int
	waited               time.Duration
	failed               bool
}

// testTimes are those of one test that has no subtests.
type testTimes struct {
	name      string
	took      time.Duration
	databases int
	waited    time.Duration
}

func main() {
	race := flag.Bool("race", false, "with the race detector, as make test")
	slowest := flag.Int("slowest", 50, "how many tests are named")
	flag.Parse()
	if err := run(os.Stdout, *race, *slowest, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "times:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, race bool, slowest int, patterns []string) error {
	listed, err := exec.Command("go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"},
		patterns...)...).Output()
	if err != nil {
		return fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), err)
	}
	folder, err := os.MkdirTemp("", "millrace-times-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	var packages []packageTimes
	var tests []testTimes
	for line := range strings.Lines(string(listed)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" {
			continue
		}
		fmt.Fprintln(os.Stderr, name)
		p, of, err := timed(folder, name, dir, race)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		packages, tests = append(packages, p), append(tests, of...)
	}
	return tell(out, packages, tests, slowest)
}

// timed builds the tests of a package and runs them.
func timed(folder, name, dir string, race bool) (packageTimes, []testTimes, error) {
	p := packageTimes{name: name}
	binary := filepath.Join(folder, "test")
	build := []string{"test", "-c", "-o", binary}
	if race {
		build = append(build, "-race", "-gcflags=modernc.org/...=-race=false", "-gcflags=internal/sync=-race=false")
	}
	if out, err := exec.Command("go", append(build, name)...).CombinedOutput(); err != nil {
		return p, nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	cmd := exec.Command("go", "tool", "test2json", "-t", "-p", name, binary, "-test.v=test2json", "-test.shuffle=on", "-test.timeout=30m")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTMPDIR=", "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return p, nil, err
	}
	before, began := busy(), time.Now()
	if err := cmd.Start(); err != nil {
		return p, nil, err
	}
	tests, err := read(events)
	if err != nil {
		return p, nil, err
	}
	p.failed = cmd.Wait() != nil
	p.took = time.Since(began)
	p.own = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	p.elsewhere = busy() - before - p.own
	for _, t := range tests {
		p.databases += t.databases
		p.waited += t.waited
	}
	return p, tests, nil
}

// event is one line of test2json.
type event struct {
	Action, Test, Output string
	Elapsed              float64
}

// waits is what testdb tells of a database that it made.
var waits = regexp.MustCompile(`testdb: a database in (\S+)`)

// read collects the times of the tests without subtests.
func read(events io.Reader) ([]testTimes, error) {
	all, parents := map[string]*testTimes{}, map[string]bool{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		if e.Test == "" {
			continue
		}
		t := all[e.Test]
		if t == nil {
			t = &testTimes{name: e.Test}
			all[e.Test] = t
		}
		for i, c := range e.Test {
			if c == '/' {
				parents[e.Test[:i]] = true
			}
		}
		switch e.Action {
		case "output":
			if m := waits.FindStringSubmatch(e.Output); m != nil {
				d, _ := time.ParseDuration(m[1]) // it was printed by us
				t.waited += d
				t.databases++
			}
		case "pass", "fail":
			t.took = time.Duration(e.Elapsed * float64(time.Second))
		}
	}
	var tests []testTimes
	for name, t := range all {
		if !parents[name] || t.databases > 0 {
			tests = append(tests, *t)
		}
	}
	return tests, lines.Err()
}

// busy is how long the processors have worked since the machine began.
func busy() time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0 // not Linux
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	var ticks int
	for i, field := range strings.Fields(line)[1:] {
		n, _ := strconv.Atoi(field) // the kernel's
		if i < 3 || i == 5 || i == 6 {
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func tell(out io.Writer, packages []packageTimes, tests []testTimes, slowest int) error {
	slices.SortFunc(packages, func(a, b packageTimes) int { return cmp.Compare(b.took, a.took) })
	slices.SortFunc(tests, func(a, b testTimes) int { return cmp.Compare(b.took, a.took) })
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) } // Flush tells of a failure
	row("took\tprocessor\telsewhere\tdatabases\tmade in\t\tpackage\n")
	var sum packageTimes
	for _, p := range packages {
		result := ""
		if p.failed {
			result = "FAILED"
		}
		row("%.1fs\t%.1fs\t%.1fs\t%d\t%.1fs\t%s\t%s\n", p.took.Seconds(), p.own.Seconds(), p.elsewhere.Seconds(), p.databases,
			p.waited.Seconds(), result, p.name)
		sum.took, sum.own, sum.elsewhere = sum.took+p.took, sum.own+p.own, sum.elsewhere+p.elsewhere
		sum.databases, sum.waited = sum.databases+p.databases, sum.waited+p.waited
	}
	row("%.1fs\t%.1fs\t%.1fs\t%d\t%.1fs\t\tall\n\n", sum.took.Seconds(), sum.own.Seconds(), sum.elsewhere.Seconds(),
		sum.databases, sum.waited.Seconds())
	row("took\tdatabases\tmade in\ttest\n")
	for _, t := range tests[:min(slowest, len(tests))] {
		row("%.2fs\t%d\t%.2fs\t%s\n", t.took.Seconds(), t.databases, t.waited.Seconds(), t.name)
	}
	return w.Flush()
}
