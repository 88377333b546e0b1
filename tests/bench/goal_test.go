package bench_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines is what the run found, printed at its end: before, the testing package writes to
// the same output.
var (
	linesMu sync.Mutex
	lines   []string
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, line := range lines {
		fmt.Println(line)
	}
	os.Exit(code)
}

// short reports whether the run is only to see that the benchmarks work.
func short() bool { return flag.Lookup("test.benchtime").Value.String() == "1x" }

// pick returns full, or brief in a short run.
func pick[T any](full, brief T) T {
	if short() {
		return brief
	}
	return full
}

// turns is how often each pair is measured.
func turns() int { return pick(3, 1) }

// phase is how long one rate is measured.
func phase() time.Duration { return pick(2*time.Second, 200*time.Millisecond) }

// A goal is a bound on a ratio.
type goal struct {
	name   string
	bound  float64
	atMost bool
}

func atLeast(name string, bound float64) goal { return goal{name: name, bound: bound} }
func atMost(name string, bound float64) goal  { return goal{name: name, bound: bound, atMost: true} }

// judge prints one line for the median of ratios.
func (g goal) judge(b *testing.B, ratios []float64, note string, args ...any) {
	b.Helper()
	ratio := median(ratios)
	sign, met := "≥", ratio >= g.bound
	if g.atMost {
		sign, met = "≤", ratio <= g.bound
	}
	verdict := "FAIL"
	if met {
		verdict = "PASS"
	}
	line := fmt.Sprintf("%s ratio=%.2f goal%s%g %s (%s; turns %s)",
		g.name, ratio, sign, g.bound, verdict, fmt.Sprintf(note, args...), list(ratios))
	if short() {
		line += " short run, means nothing"
	}
	tell(line)
	b.ReportMetric(ratio, strings.ReplaceAll(g.name, " ", "-"))
	b.ReportMetric(0, "ns/op") // hides it: the time of the whole benchmark says nothing
}

// tell prints a line at the end of the run.
func tell(line string) {
	linesMu.Lock()
	defer linesMu.Unlock()
	lines = append(lines, line)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func list(values []float64) string {
	texts := make([]string, 0, len(values))
	for _, v := range values {
		texts = append(texts, fmt.Sprintf("%.2f", v))
	}
	return strings.Join(texts, " ")
}

// series collects the rates of several ways to do one thing, turn by turn.
type series map[string][]float64

func (s series) add(way string, rate float64) { s[way] = append(s[way], rate) }

// over returns the paired ratios of two ways.
func (s series) over(way, other string) []float64 {
	ratios := make([]float64, 0, len(s[way]))
	for i, rate := range s[way] {
		ratios = append(ratios, rate/s[other][i])
	}
	return ratios
}
