package tests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Two adjacent releases run against one schema: a service of the release before and one of
// this source share a database that this source migrated. Each is killed with work of every
// kind left behind, which the other one takes up.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	before := releases(t).service
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		k := newBroker(newBed(t, db))
		start := map[string]func() *process.Process{
			"old": func() *process.Process { return process.StartProgram(t, before, k.service) },
			"new": func() *process.Process { return process.Start(t, k.service) },
		}
		for _, c := range [][2]string{{"old", "new"}, {"new", "old"}} {
			k.takeOver(start[c[0]](), start[c[1]]())
		}
		k.check()
	}, testdb.Empty())
}

// takeOver lets two services work beside each other on the same messages, kills one, and
// leaves what it had begun to the other.
func (k *broker) takeOver(dying, staying *process.Process) {
	k.Helper()
	const shared = 20
	for range shared {
		m := letter()
		k.letters = append(k.letters, m)
		for _, p := range []*process.Process{dying, staying} {
			p.Deliver(process.Delivery{Message: m, Copies: 2})
		}
	}
	for _, p := range []*process.Process{dying, staying} {
		rig.Eventually(k, "both have answered everything", func() bool {
			return len(p.Events(process.Acked))+len(p.Events(process.Nacked)) == 2*shared
		})
		assert.Empty(k, p.Events(process.Failed))
	}
	points := []process.Point{process.MidPublish, process.AfterCommit, process.InHandler}
	if k.db.Dialect == "sqlite" {
		points = points[:2] // one that stops in its transaction lets no other begin
	}
	for _, point := range points {
		m := letter()
		k.letters = append(k.letters, m)
		stopped := len(dying.Events(process.At))
		dying.Deliver(process.Delivery{Message: m, Stop: point})
		dying.Await(process.At, stopped+1)
	}
	dying.Kill()
	k.collect(dying)
	k.untilQuiet(staying)
	staying.Close()
	k.collect(staying)
}

// What the schema's checksums say was released is what the release before has.
func TestReleasedMigrationsAreThoseOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	sums, err := filepath.Abs("../internal/dialect/released.sum")
	require.NoError(t, err)
	scripts := filepath.Join(releases(t).source, "internal", "dialect")
	err = command(scripts, "sha256sum", "--check", "--quiet", sums)
	require.NoError(t, err)
	all, err := filepath.Glob(filepath.Join(scripts, "*", "*.sql"))
	require.NoError(t, err)
	text, err := os.ReadFile(sums)
	require.NoError(t, err)
	require.Len(t, all, strings.Count(string(text), "\n"), "internal/dialect/released.sum names other migrations")
}
