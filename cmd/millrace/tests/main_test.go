package tests_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var update = flag.Bool("update", false, "write what the command prints to testdata")

// binary is the command, built once.
var binary string

// long are tests that take seconds and stand beside bodies that run every day: some have their turn each day.
var long = []string{
	"TestANight", "TestInitRuns", "TestCheckOfAnEngineBehindAPooler",
}

func TestMain(m *testing.M) {
	testdb.Overlap(8)
	folder, err := os.MkdirTemp("", "millrace")
	// A terminal with colours, whatever this one is.
	err = errors.Join(err, os.Unsetenv("NO_COLOR"), os.Setenv("TERM", "xterm"))
	if err == nil {
		binary, err = rig.Build(folder, "github.com/millrace-go/millrace/cmd/millrace")
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// result is what a call of the command came to.
type result struct {
	out, err string
	code     int
}

// call runs the command with a DSN in its environment.
func call(t *testing.T, dsn string, args ...string) result {
	t.Helper()
	return finish(t, command(t.Context(), dsn, args...))
}

// finish runs a command.
func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	return result{code: exit(t, cmd.Run()), out: out.String(), err: err.String()}
}

func command(ctx context.Context, dsn string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_DSN="+dsn, "MILLRACE_CONTEXTS=/nowhere", "MILLRACE_CONTEXT=")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func exit(t *testing.T, err error) int {
	t.Helper()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return ended.ExitCode()
	}
	require.NoError(t, err)
	return 0
}

// golden compares a whole call with a file, once it has nothing in it that differs between
// two runs or two databases.
func golden(t *testing.T, name string, args []string, r result) {
	t.Helper()
	compare(t, name, args, r, *update && !strings.Contains(t.Name(), "postgres") && !strings.Contains(t.Name(), "mysql"))
}

// goldenOf is golden for what is printed of one database alone.
func goldenOf(t *testing.T, name string, args []string, r result) {
	t.Helper()
	compare(t, name, args, r, *update)
}

func compare(t *testing.T, name string, args []string, r result, write bool) {
	t.Helper()
	got := fmt.Sprintf("$ millrace %s\n%s", quoted(args), same(r.out))
	if r.err != "" {
		got += "--- stderr\n" + same(r.err)
	}
	if r.code != 0 {
		got += fmt.Sprintf("--- exit %d\n", r.code)
	}
	file := filepath.Join("testdata", name+".txt")
	if write {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run with -update")
	assert.Equal(t, string(want), got)
}

func quoted(args []string) string {
	all := make([]string, 0, len(args))
	for _, a := range args {
		if strings.ContainsAny(a, " '") {
			a = "'" + a + "'"
		}
		all = append(all, a)
	}
	return strings.Join(all, " ")
}
