package tests_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Two adjacent releases run against one schema: a service of the release before and one of
// this source share a database that this source migrated. Each is killed with work of every
// kind left behind, which the other one takes up.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	before := releaseBefore(t)
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		k := newBroker(newBed(t, db))
		start := map[string]func() *process.Process{
			"old": func() *process.Process { return process.StartProgram(t, before, k.service) },
			"new": func() *process.Process { return process.Start(t, k.service) },
		}
		for _, c := range [][2]string{{"old", "new"}, {"new", "old"}} {
			k.takeOver(start[c[0]](), start[c[1]]())
		}
		k.check()
	})
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
		k.eventually("both have answered everything", func() bool {
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

// releaseBefore builds the service of the newest tag that HEAD is not, and returns the
// program: this test binary itself where there is no such tag, or no git.
func releaseBefore(t *testing.T) string {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	tag, err := git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
	if err != nil {
		fmt.Println("rolling upgrade: no release before this source is known, so it runs beside itself")
		return binary
	}
	source := t.TempDir()
	archive := filepath.Join(source, "source.tar")
	_, err = git("archive", "--output="+archive, tag)
	require.NoError(t, err)
	run(t, source, "tar", "-xf", archive)
	program := filepath.Join(source, "release-before")
	run(t, source, "go", "build", "-o", program, "./tests/process/service")
	fmt.Printf("rolling upgrade: %s beside this source\n", tag)
	return program
}

func git(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", ".."}, args...)...)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &said, &said
	require.NoError(t, cmd.Run(), "%s %v\n%s", name, args, &said)
}
