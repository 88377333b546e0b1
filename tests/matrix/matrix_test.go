// Package matrix_test has every pair of features that a consumer may switch on together handle
// one small stream, shuffled and doubled, with a commit whose outcome is not known, and a process that dies. A pair ends with exact
// effects and nothing stuck, or it is refused with an error that says why.
package matrix_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestEveryPairOfFeatures plays a sample of all features and all pairs of them, more on SQLite
// than on the servers, and everything if MILLRACE_TEST_LONG is 1. Stream, crash and sample
// follow from the day, or from MILLRACE_TEST_SEED, and are printed.
func TestEveryPairOfFeatures(t *testing.T) {
	seed := seedOf(t)
	t.Logf("play it again: MILLRACE_TEST_SEED=%d go test ./tests/matrix", seed)
	all := pairs()
	for _, dialect := range []string{"sqlite", "postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			stages := newStages(t, dialect)
			for i, p := range sampled(all, dialect, seed) {
				t.Run(p.String(), func(t *testing.T) {
					t.Parallel()
					p.play(t, stages, seed+uint64(i)<<32)
				})
			}
		})
	}
}

// seedOf returns where chance begins.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("MILLRACE_TEST_SEED")
	if text == "" {
		return uint64(time.Now().Unix() / int64((24 * time.Hour).Seconds()))
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	return seed
}

// pair is two features, or one.
type pair []feature

func (p pair) String() string {
	names := make([]string, len(p))
	for i, f := range p {
		names[i] = f.name
	}
	return strings.Join(names, " and ")
}

// pairs are all but those of one setting, and a gate with a former key, which is refused once the key changes.
func pairs() (all []pair) {
	for i, one := range features {
		all = append(all, pair{one})
		for _, other := range features[i+1:] {
			if other.name == "former key" && one.setting == "gate" {
				continue
			}
			if one.setting == "" || one.setting != other.setting {
				all = append(all, pair{one, other})
			}
		}
	}
	return all
}

// sampled are the pairs that are played on a database.
func sampled(all []pair, dialect string, seed uint64) []pair {
	if testdb.Long() {
		return all
	}
	sample := 2
	if dialect == "sqlite" {
		sample = 10
	}
	dice := rand.New(rand.NewPCG(seed, uint64(len(dialect)))) //nolint:gosec // it must be repeatable
	some := make([]pair, 0, sample)
	for _, i := range dice.Perm(len(all))[:sample] {
		some = append(some, all[i])
	}
	return some
}

// play plays the stream undisturbed and with faults, or has the pair refused.
func (p pair) play(t *testing.T, on stages, seed uint64) {
	s := with(t.TempDir(), p...)
	s.failed, s.plays = map[string]bool{}, map[string]*performance{}
	inputs := s.inputs(seed)
	scenario := inboxtest.Scenario{
		Prepare: prepare,
		Service: s.wire,
		Inputs:  inputs,
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			problems, err := s.problems(ctx, db, inputs)
			return strings.Join(problems, "\n    "), err
		},
		Want:     "",
		Produced: s.produced,
		InFlight: s.inFlight,
		Outside:  []string{"audited"},

		Namespace: s.config.Namespace,
		Patience:  time.Minute,
	}
	var leave func()
	scenario.Databases, leave = on.enter()
	defer leave()
	if why, is := refusalOf(p); is {
		s.mustRefuse(t, scenario, why)
		return
	}
	inboxtest.Replay(t, scenario, faults(seed))
	assert.Empty(t, s.unpublished())
	if t.Failed() {
		t.Logf("the router was told: %s", strings.Join(s.errors(), "\n"))
	}
}

// faults are a commit whose answer is lost, so that copies come of what may have been handled, and
// where the process dies, and where the next one does.
func faults(seed uint64) string {
	dice := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // it must be repeatable
	when := func() string { return []string{"before", "after"}[dice.IntN(2)] }
	crashes := fmt.Sprintf("crash %s call %d; crash %s call %d", when(), 1+dice.IntN(40), when(), 1+dice.IntN(40))
	return fmt.Sprintf("lose after commit %d; %s", 1+dice.IntN(8), crashes)
}

// stages are the databases on which plays take place, nil where each has a file of its own.
type stages chan inboxtest.Database

func newStages(t *testing.T, dialect string) stages {
	t.Helper()
	if dialect == "sqlite" {
		return nil
	}
	const abreast = 4
	all := make(stages, abreast)
	for range abreast {
		db := testdb.On(t, dialect, testdb.Empty()) // a play begins with that
		all <- inboxtest.Database{Driver: db.Driver, DSN: db.DSN}
	}
	return all
}

// enter returns a database that nobody else has until leave is called.
func (all stages) enter() (mine []inboxtest.Database, leave func()) {
	if all == nil {
		return nil, func() {}
	}
	db := <-all
	return []inboxtest.Database{db}, func() { all <- db }
}
