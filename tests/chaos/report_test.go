package chaos_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/pubsub"
)

// counts sums up what all members told.
func (r *ring) counts() map[string]int {
	sum := map[string]int{}
	for _, s := range r.seats {
		for _, p := range s.all {
			if said := p.Events(tally); len(said) > 0 {
				for kind, n := range said[len(said)-1].Counts {
					sum[kind] += n
				}
			}
		}
	}
	return sum
}

// report prints what happened.
func (r *ring) report(m *monkey, lasts time.Duration, seed uint64, wrong, stuck map[string]int) {
	counts, failed, began := r.counts(), 0, 0
	for _, s := range r.seats {
		failed += len(s.failed)
		began += s.began
	}
	var text strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&text, "  %-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&text, "chaos on %s, %v: %v with seed %d\n", r.ledger.db.Dialect, map[pubsub.Mode]string{
		pubsub.StoreOnFailure: "storing on failure", pubsub.StoreFirst: "storing first"}[r.mode], lasts, seed)
	line("messages", "%d transfers, %d receipts", r.ledger.rows("produced"), r.ledger.rows("applied"))
	for _, name := range slices.Sorted(maps.Keys(m.done)) {
		line("fault", "%s: %d", name, m.done[name])
	}
	line("fault", "publishing refused: %d; done, and said to have failed: %d; done twice: %d messages",
		counts["refusal"], counts["unreported"], counts["copy"])
	line("members", "%d began, of which %d ended by themselves", began, failed)
	line("deliveries", "%d, of which %d again", counts["handed"], max(0, counts["handed"]-2*r.ledger.rows("produced")-r.ledger.rows("applied")))
	line("handlers", "ran %d times; %d failures, %d duplicates absorbed, %d versions held and %d released, %d parked",
		counts["run"], counts["failed"], counts["duplicate"]+counts["stale"], counts["held"], counts["released"], counts["parked"])
	line("batches", "ran %d times, with %d messages", counts["batches"], counts["batched"])
	for _, w := range wrongs {
		line("ledger", "%s: %d", w.what, wrong[w.what])
	}
	line("ledger", "stuck: %v", stuck)
	fmt.Print(text.String())
}

// explain prints why members ended, and writes what they said to the folder MILLRACE_CHAOS_LOGS.
func (r *ring) explain() {
	for _, s := range r.seats {
		for _, why := range s.failed {
			r.Logf("%s ended: %s", s.Name, why)
		}
		for n, p := range s.all {
			p.Kill()
			if folder := os.Getenv("MILLRACE_CHAOS_LOGS"); folder != "" {
				file := filepath.Join(folder, fmt.Sprintf("%s %d.log", s.Name, n))
				assert.NoError(r, os.WriteFile(file, []byte(p.Said()), 0o600))
			}
		}
	}
	r.ledger.explain()
}
