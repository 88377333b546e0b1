package tests_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// named is a file of contexts, and the environment of the calls.
type named struct {
	*testing.T
	file string
	env  []string
}

// contexts makes a file with these lines.
func contexts(t *testing.T, lines ...string) *named {
	t.Helper()
	file := filepath.Join(t.TempDir(), "contexts.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	return &named{T: t, file: file, env: []string{"MILLRACE_CONTEXTS=" + file}}
}

func (n *named) run(args ...string) result {
	n.Helper()
	cmd := command(n.Context(), "", args...)
	cmd.Env = append(cmd.Env, n.env...)
	r := finish(n.T, cmd)
	hidden(n.T, r)
	return r
}

func TestContexts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		n := contexts(t, "# of the shop", "shop: "+s.db.DSN, "down: postgres://ada:"+marker+"@127.0.0.1:1/shop",
			"both: eu="+s.db.DSN+" us=postgres://ada:"+marker+"@127.0.0.1:1/us")
		r := n.run("list")
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, "choose a context with --context or millrace context use; "+n.file+" has both, down, shop\n")
		shown := n.run("--context", "shop", "list")
		assert.Equal(t, s.run("list"), shown)
		r = n.run("--context", "down", "list")
		assert.Equal(t, 4, r.code)
		assert.Contains(t, n.run("context", "use", "sop").err, "no context \"sop\" in "+n.file+": there are both, down, shop")
		assert.Contains(t, n.run("context", "use", "shop").out, "context shop: ")
		assert.Equal(t, shown, n.run("list"))
		assert.Regexp(t, `(?m)^shop +yes +\S`, n.run("context", "list").out)

		// What is repeated works on the same database, whatever is chosen by then.
		assert.Regexp(t, `Nothing was changed in context shop, .*\. To go on, add --context shop --reason '…' --yes`, n.run("discard", "7").err)
		assert.Regexp(t, `in context both, eu, .* add --reason`, n.run("--context", "both", "--on", "eu", "discard", "7").err)
		assert.Contains(t, n.run("--context", "shop", "status").out, "  millrace --context shop waiting --consumer billing\n")
		assert.Contains(t, n.run("status").out, "  millrace waiting --consumer billing\n")

		n.env = append(n.env, "MILLRACE_CONTEXT=down")
		assert.Equal(t, 4, n.run("list").code, "one shell has another one")
		assert.Equal(t, shown, n.run("--context", "shop", "list"))
		n.env = append(n.env, "MILLRACE_DSN="+s.db.DSN)
		assert.Equal(t, shown, n.run("list"), "and MILLRACE_DSN goes before")
		assert.Contains(t, n.run("context", "list").err, "MILLRACE_DSN is set")
		assert.Equal(t, 4, n.run("--context", "down", "list").code, "but not before a flag")
		assert.Equal(t, 2, n.run("--context", "down", "--dsn", "sqlite:x", "list").code)
	}))
	n := contexts(t, "shop: postgres://ada:"+marker+"@db.internal/shop", "eu: eu=postgres://ada:"+marker+"@eu/shop us=ada:"+marker+"@tcp(us:3306)/shop")
	golden(t, "context-list", []string{"context", "list"}, n.run("context", "list"))
	golden(t, "context-use", []string{"context", "use", "shop"}, n.run("context", "use", "shop"))
	r := n.run("context", "list", "--json")
	r.out = strings.ReplaceAll(r.out, n.file, "/home/ada/.config/millrace/contexts.yaml")
	golden(t, "context-list-json", []string{"context", "list", "--json"}, r)
}

// TestContextsThatOthersCanRead, or that are none, are refused, and nothing of them is shown.
func TestContextsThatOthersCanRead(t *testing.T) {
	t.Parallel()
	const line = "shop: postgres://ada:" + marker + "@127.0.0.1:1/shop"
	refused := func(n *named, says string) {
		t.Helper()
		for _, args := range [][]string{{"list"}, {"--context", "shop", "list"}, {"context", "list"}, {"context", "use", "shop"}} {
			r := n.run(args...)
			assert.Equal(t, 2, r.code, args)
			assert.Contains(t, r.err, says, args)
		}
		assert.Zero(t, n.run("schema", "sqlite").code, "what needs no database")
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o666} {
		n := contexts(t, line)
		require.NoError(t, os.Chmod(n.file, mode))
		refused(n, "chmod 600 it")
		require.NoError(t, os.Rename(n.file, n.file+".target"))
		require.NoError(t, os.Symlink(n.file+".target", n.file))
		refused(n, "chmod 600 it")
		require.NoError(t, os.Chmod(n.file+".target", 0o600))
		assert.Zero(t, n.run("context", "use", "shop").code, "a link to a file that is private")
		assert.Equal(t, 4, n.run("list").code)
		require.NoError(t, os.Chmod(n.file+".current", mode))
		assert.Contains(t, n.run("list").err, "chmod 600 it", "who can write it chooses the database")
	}
	for _, text := range []string{"- " + line, "shop:\n  dsn: x" + marker, line + "\n" + line, "\x00" + line, marker, "sh\x1b[1mop" + line} {
		refused(contexts(t, text), "lines of the form NAME: DSN")
	}
	refused(contexts(t, "\"a b\": sqlite:x.db"), "a name with other characters")
	n := contexts(t)
	require.NoError(t, os.Remove(n.file))
	assert.Equal(t, 3, n.run("context", "list").code)
	assert.Contains(t, n.run("list").err, "MILLRACE_DSN", "nobody uses contexts")
	assert.Contains(t, n.run("--context", "shop", "list").err, "no such file")
	require.NoError(t, syscall.Mkfifo(n.file, 0o600))
	refused(n, "is not a file")
	require.NoError(t, os.Remove(n.file))
	require.NoError(t, os.Mkdir(n.file, 0o700))
	refused(n, "is not a file")
	if os.Geteuid() == 0 && runtime.GOOS == "linux" {
		n := contexts(t, line)
		require.NoError(t, os.Chown(n.file, 12345, -1))
		refused(n, "belongs to another user")
	}
}

// TestContextsAreChosenAtOnce: whoever is last has chosen, and nothing is torn or left.
func TestContextsAreChosenAtOnce(t *testing.T) {
	t.Parallel()
	n := contexts(t, "a: sqlite:a.db", "bbbb: sqlite:b.db")
	ended := make(chan result)
	for i := range 8 {
		go func() { ended <- n.run("context", "use", []string{"a", "bbbb"}[i%2]) }()
	}
	for range 8 {
		assert.Zero(t, (<-ended).code)
	}
	text, err := os.ReadFile(n.file + ".current")
	require.NoError(t, err)
	assert.Contains(t, []string{"a\n", "bbbb\n"}, string(text))
	left, err := os.ReadDir(filepath.Dir(n.file))
	require.NoError(t, err)
	assert.Len(t, left, 2)
}
