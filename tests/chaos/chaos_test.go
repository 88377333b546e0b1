package chaos_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestChaos runs for MILLRACE_CHAOS_TIME on each database, with MILLRACE_CHAOS_SEED; without them for
// 5 seconds on one, another from day to day.
func TestChaos(t *testing.T) {
	type wiring struct {
		dialect string
		mode    pubsub.Mode
	}
	lasts, wirings := 5*time.Second, []wiring{{"postgres", pubsub.StoreOnFailure}, {"mysql", pubsub.StoreFirst}}
	if text := os.Getenv("MILLRACE_CHAOS_TIME"); text != "" {
		var err error
		lasts, err = time.ParseDuration(text)
		require.NoError(t, err, "MILLRACE_CHAOS_TIME")
	} else {
		testdb.OneIn(t, 3)
		wirings = testdb.Sample(t, 1, wirings)
	}
	seed := rand.Uint64N(1_000_000)
	if text := os.Getenv("MILLRACE_CHAOS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "MILLRACE_CHAOS_SEED")
	}
	for _, w := range wirings {
		t.Run(w.dialect, func(t *testing.T) {
			r := newRing(t, w.dialect, w.mode)
			m := newMonkey(seed, r.faults(), time.Second)
			m.rage(lasts, func() { r.watch(m) })
			r.calm()
			stuck := r.ledger.settle()
			wrong := r.ledger.audit()
			r.report(m, lasts, seed, wrong, stuck)
			assert.Empty(t, stuck, "stuck")
			for what, n := range wrong {
				assert.Zero(t, n, what)
			}
			if t.Failed() {
				r.explain()
			}
		})
	}
}
