package tests_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
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
	testdb.Turn(t, 1, upgrades)
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
	source, err := formerSource()
	require.NoError(t, err)
	scripts := filepath.Join(source, "internal", "dialect")
	err = command(scripts, "sha256sum", "--check", "--quiet", sums)
	require.NoError(t, err)
	all, err := filepath.Glob(filepath.Join(scripts, "*", "*.sql"))
	require.NoError(t, err)
	text := readText(t, sums)
	require.Len(t, all, strings.Count(text, "\n"), "internal/dialect/released.sum names other migrations")
}

// programs are those of package process and of package upgrade.
type programs struct {
	service       string // of the release before
	before, after string // package upgrade, by the release before and by this source
	relay         string // package relayproc, of the release before
}

// What TestMain removes: the folder of what is built, and the source of the release before.
var builds, source string

// releases builds the programs, once for all tests. The release before is the commit that
// the file release-before names. It is built with the libraries of this source, so that
// nothing differs but Millrace.
func releases(t *testing.T) programs {
	t.Helper()
	p, err := buildReleases()
	require.NoError(t, err)
	return p
}

var buildReleases = sync.OnceValues(func() (programs, error) {
	source, err := formerSource()
	if err != nil {
		return programs{}, err
	}
	old, current := filepath.Join(builds, "before"), filepath.Join(builds, "after")
	return programs{
		service: filepath.Join(old, "service"), before: filepath.Join(old, "upgrade"), after: filepath.Join(current, "upgrade"),
		relay: filepath.Join(old, "relay"),
	}, errors.Join(build(source, old, "./tests/process/service", "./tests/upgrade", "./tests/upgrade/relay"), build("..", current, "./tests/upgrade"))
})

// formerSource returns the folder of the release before.
var formerSource = sync.OnceValues(func() (string, error) {
	var err error
	if builds, err = os.MkdirTemp("", "millrace-releases"); err != nil {
		return "", err
	}
	here, err := filepath.Abs("..")
	if err != nil {
		return "", err
	}
	// Always at the same place, so that what go build has compiled once is not compiled again.
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(here)) // it never fails
	source = filepath.Join(os.TempDir(), fmt.Sprintf("millrace-release-%x", sum.Sum32()))
	return source, errors.Join(os.RemoveAll(source), checkOut(source))
})

// checkOut writes the source of the release before into a folder.
func checkOut(source string) error {
	text, err := os.ReadFile("release-before")
	if err != nil {
		return err
	}
	commit := strings.TrimSpace(string(text))
	if err := command("..", "git", "cat-file", "-e", commit+"^{commit}"); err != nil {
		return fmt.Errorf("tests/release-before names the commit %s, which this clone does not have: "+
			"it must be a whole clone (git fetch --unshallow)\n%w", commit, err)
	}
	archive := filepath.Join(builds, "source.tar")
	if err := command("..", "git", "archive", "--output="+archive, commit); err != nil {
		return err
	}
	if err := os.Mkdir(source, 0o750); err != nil {
		return err
	}
	if err := command(source, "tar", "-xf", archive); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(source, name), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	// A release has its own programs. The one from before there were any gets those of this source.
	own := filepath.Join(source, "tests", "upgrade")
	if exists(own) {
		return nil
	}
	return errors.Join(os.CopyFS(own, os.DirFS("upgrade")), withoutAdmin(filepath.Join(own, "main.go")))
}

// withoutAdmin rewrites a program for a release whose operators' side was a part of Store.
func withoutAdmin(program string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	before := strings.NewReplacer("\t\"github.com/millrace-go/millrace/inbox/admin\"\n", "",
		"admin.New(s.store).", "s.store.", "admin.", "inbox.").Replace(string(text))
	return os.WriteFile(program, []byte(before), 0o600)
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// build builds programs the way this test was built, of whose libraries the compiled form is
// there already.
func build(source, into string, packages ...string) error {
	args := []string{"build", "-buildvcs=false", "-o", into + string(filepath.Separator)}
	if info, known := debug.ReadBuildInfo(); known {
		for _, s := range info.Settings {
			switch s.Key {
			case "-race", "-ldflags":
				args = append(args, s.Key+"="+s.Value)
			case "-gcflags": // of which only the last is told: both are those of make test
				args = append(args, "-gcflags=modernc.org/...=-race=false", "-gcflags=internal/sync=-race=false")
			}
		}
	}
	return command(source, "go", append(args, packages...)...)
}

func command(dir, name string, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(context.Background(), name, args...) // for all tests, so not the first one's
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, &said)
	}
	return nil
}
