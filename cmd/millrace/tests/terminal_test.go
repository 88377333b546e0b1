package tests_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// screen is a terminal, and what is to be read on it.
type screen struct {
	*testing.T
	keyboard *os.File
	shown    *bufio.Reader
	cmd      *exec.Cmd
}

func (s *shop) onTerminal(args ...string) *screen {
	s.Helper()
	cmd := command(s.Context(), s.db.DSN, args...)
	file, err := pty.Start(cmd)
	require.NoError(s, err)
	bound := time.AfterFunc(rig.Patience, func() { _ = file.Close() })
	s.Cleanup(func() { bound.Stop(); _ = file.Close() })
	return &screen{T: s.T, keyboard: file, shown: bufio.NewReader(file), cmd: cmd}
}

// await reads on until text has been shown.
func (s *screen) await(text string) {
	s.Helper()
	var seen strings.Builder
	for !strings.HasSuffix(seen.String(), text) {
		b, err := s.shown.ReadByte()
		require.NoError(s, err, "%q is not in %q", text, seen.String())
		seen.WriteByte(b)
	}
}

// rest is what is shown until the command ends.
func (s *screen) rest() string {
	s.Helper()
	rest, _ := io.ReadAll(s.shown) // a terminal ends with an error
	return string(rest)
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.serve()
	s.park(250)
	term := s.onTerminal("retry", "--all-matching", "--topic", "many", "--reason", "x", "--yes")
	shown := term.rest()
	assert.Zero(t, exit(t, term.cmd.Wait()))
	assert.Contains(t, shown, "retry [############------------------] 100 of 250")
	assert.Contains(t, shown, "retry [##############################] 250 of 250")
	assert.Contains(t, shown, "250 messages to be handled now")
	term = s.onTerminal("purge", "--yes")
	assert.Contains(t, term.rest(), "0 expired claims deleted")
	assert.Zero(t, exit(t, term.cmd.Wait()))
}

// TestManyMessagesAreCountedBeforeAnAction: nobody can tell from "of 10000+" how long it takes.
func TestManyMessagesAreCountedBeforeAnAction(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.serve()
	s.park(1)
	s.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25049)
		INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at)
		SELECT consumer, CAST('many' || i AS BLOB), status, topic, uuid, metadata, payload, payload_hash, received_at, due_at
		FROM millrace_messages, n WHERE topic = ?`, []byte("many"))
	r := s.run("retry", "--all-matching", "--topic", "many")
	assert.Contains(t, r.out, "25050 messages would be handled again", r.err)
	term := s.onTerminal("retry", "--all-matching", "--topic", "many", "--rate", "50", "--reason", "x", "--yes")
	term.await("100 of 25050, ")
	term.await("s left")
	_, err := term.keyboard.Write([]byte{3})
	require.NoError(t, err)
	term.rest()
	assert.Equal(t, 130, exit(t, term.cmd.Wait()))
}

func TestWatchRepaintsUntilCtrlC(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	term := s.onTerminal("status", "--watch=100ms")
	term.await("\x1b[HPROBLEM")
	term.await("\x1b[2m0\x1b[0m") // a zero is dim
	s.serve()
	term.await("served")
	_, err := term.keyboard.Write([]byte{3}) // Ctrl-C
	require.NoError(t, err)
	term.rest()
	assert.Zero(t, exit(t, term.cmd.Wait()))
	r := s.run("status", "--watch=1ms")
	assert.Equal(t, 2, r.code)
}

// TestWatchOfADatabaseThatHangs: what it has shown before is past.
func TestWatchOfADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, testdb.On(t, dialect))
			wire, through := servers.Before(t, s.db.DSN)
			s.db.DSN = through
			term := s.onTerminal("status", "--watch=100ms", "--timeout=3s")
			term.await("\x1b[HPROBLEM")
			wire.Freeze()
			for range 2 {
				term.await("\x1b[Hthe database did not answer within 3s")
			}
			wire.Thaw()
			term.await("\x1b[HPROBLEM")
			_, err := term.keyboard.Write([]byte{3}) // Ctrl-C
			require.NoError(t, err)
			term.rest()
			assert.Zero(t, exit(t, term.cmd.Wait()))
		})
	}
}

// TestASecondCtrlCEndsTheCommandAtOnce: it may wait for something that no context ends, such as its input.
func TestASecondCtrlCEndsTheCommandAtOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	for name, signal := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := command(t.Context(), s.db.DSN, "payload", "replace", "7", "--file", "-", "--reason", "x", "--yes")
			input, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			_, err = input.Write(make([]byte, 1<<20)) // more than a pipe holds
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			rig.Eventually(t, "it ends", func() bool {
				_ = cmd.Process.Signal(signal) // it may have ended
				return len(ended) > 0
			})
			require.Error(t, <-ended)
			status, is := cmd.ProcessState.Sys().(syscall.WaitStatus)
			require.True(t, is)
			assert.Equal(t, signal, status.Signal(), "the first did not end it")
		})
	}
}

// TestARetryOfManyGoesOnWhereItEnded: what each of two commands says is what it did, and no message is retried twice.
func TestARetryOfManyGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	many := 2000
	if testdb.Long() {
		many = 100_000
	}
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.serve()
		s.park(1)
		s.exec(`INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at)
			SELECT m.consumer, `+s.db.Bytes("i + 1000")+`, m.status, m.topic, m.uuid, m.metadata, m.payload, m.payload_hash, m.received_at, m.due_at
			FROM millrace_messages m, `+s.db.Numbers(many-1)+` WHERE m.topic = ?`, []byte("many"))
		args := []string{"retry", "--all-matching", "--topic", "many", "--reason", "x", "--yes", "--rate"}
		cmd := command(t.Context(), s.db.DSN, append(args, "200")...)
		var out, problems bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &problems
		require.NoError(t, cmd.Start())
		retried := func() int {
			return s.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = 4 AND topic = ?`, []byte("many"))
		}
		rig.Eventually(t, "some are retried", func() bool { return retried() >= 500 })
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.Equal(t, 130, exit(t, cmd.Wait()), "as shells have it: 128 and the number of the signal: %s", problems.String())
		assert.Contains(t, problems.String(), "interrupted")
		assert.Contains(t, problems.String(), " done")
		first := retried()
		require.Less(t, first, many)
		assert.Equal(t, fmt.Sprintf("%d messages to be handled now\n", first), out.String())

		r := s.run(append(args, "1000000")...)
		require.Zero(t, r.code, r.err)
		assert.Equal(t, fmt.Sprintf("%d messages to be handled now\n", many-first), r.out)
		assert.Empty(t, r.err, "there is no terminal, so there is no bar")
		assert.Equal(t, many, retried())
		assert.Equal(t, many, s.count(`SELECT COUNT(DISTINCT message_id) FROM millrace_audit_messages`))
		assert.Equal(t, many, s.count(`SELECT SUM(messages) FROM millrace_audit`))
	}))
}

// TestANameIsNoOrderToTheTerminal: consumers are named by services, and some by what comes from outside.
func TestANameIsNoOrderToTheTerminal(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.archive()
	s.exec(`UPDATE millrace_consumers SET name = CAST(name || ? AS BLOB)`, "\x1b[2J")
	yes := []string{"--reason", "x", "--yes"}
	for _, args := range [][]string{
		{"pause", "mail\x1b[2J"}, append([]string{"pause", "mail\x1b[2J"}, yes...),
		{"replay", "run", "may", "--from", "archive", "--topic", "orders"}, append([]string{"replay", "run", "may", "--from", "archive", "--topic", "orders"}, yes...),
	} {
		r := s.run(args...)
		assert.NotContains(t, r.out+r.err, "\x1b")
		assert.Contains(t, r.out+r.err, "mail\ufffd[2J", "%q", args)
	}
}

func TestNobodyReadsOn(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	cmd := command(t.Context(), s.db.DSN, "schema", "postgres")
	read, write, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, read.Close())
	var problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = write, &problems
	_ = cmd.Run() // it may end with a signal
	require.NoError(t, write.Close())
	assert.Empty(t, problems.String())
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		for _, args := range [][]string{{"pause", ""}, {"list", "--consumer", ""}} {
			rig.Eventually(t, "the database answers soon enough", func() bool {
				return strings.Contains(s.run(append([]string{"__complete"}, args...)...).out, "billing\nmail\n")
			})
		}
		assert.Contains(t, s.run("__complete", "retry", "--status", "").out, "failed_terminal\n")
		assert.Contains(t, s.run("__complete", "sta").out, "status\t")
	}))
	r := call(t, "postgres://ada:"+marker+"@127.0.0.1:1/x", "__complete", "pause", "")
	assert.NotContains(t, r.out, "billing")
	hidden(t, r)
	assert.Contains(t, call(t, "", "completion", "bash").out, "bash completion")
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", "status", "list", "waiting", "audit", "audit prune", "version", "explain", "check", "retry", "discard", "pause", "resume", "outbox", "outbox list", "outbox retry",
		"outbox discard", "outbox shards", "purge", "migrate", "schema", "set-version", "skip-gap", "redispatch", "payload", "payload replace", "context", "context list", "context use",
	} {
		r := call(t, "", append(strings.Fields(name), "--help")...)
		assert.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, "Examples:\n  ", name)
	}
	r := call(t, "", "--version")
	assert.Zero(t, r.code)
	assert.Regexp(t, `^millrace \S+, .*go1\.`, r.out)
	assert.Equal(t, r.out, call(t, "", "version").out)
	assert.Contains(t, call(t, "", "version", "--json").out, `"version": "`)
	assert.Equal(t, 0, call(t, "").code)
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "postgres"))
	tx, err := s.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // it is over
	_, err = tx.ExecContext(t.Context(), `LOCK TABLE millrace_messages`)
	require.NoError(t, err)
	timeout := 300 * time.Millisecond
	var r result
	rig.Eventually(t, "it has connected within the timeout", func() bool {
		r = s.run("list", "--timeout", timeout.String())
		timeout *= 2
		return r.code != 4
	})
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "longer than --timeout "+(timeout/2).String())
}
