package tests_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// piped is a call that reads standard input.
func (s *shop) piped(in string, args ...string) result {
	s.Helper()
	cmd := command(s.Context(), s.db.DSN, args...)
	var out, err bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &err
	return result{code: exit(s.T, cmd.Run()), out: out.String(), err: err.String()}
}

// keysFile is what a table of processed messages was exported to: one that mail has handled,
// three that it has not, one too old, and three that are no keys.
func keysFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys.csv")
	recently := time.Now().Add(-day)
	lines := []string{
		"message_id,processed_at",
		id(20) + "," + recently.Format(time.RFC3339),
		id(60) + "," + recently.UTC().Format("2006-01-02 15:04:05.000000"),
		id(61) + "," + recently.UTC().Format("2006-01-02 15:04:05+00"),
		"order-62",
		id(63) + ",2020-05-01T08:00:00Z",
		id(64) + ",yesterday",
		id(65) + ",1700000000000",
		`"` + id(66),
	}
	require.NoError(t, os.WriteFile(file, []byte("\ufeff"+strings.Join(lines, "\n")), 0o600))
	return file
}

// asFile puts a short name into a result for a file that has a long one.
func asFile(r result, file string) result {
	for _, text := range []*string{&r.out, &r.err} {
		*text = strings.ReplaceAll(*text, file, "keys.csv")
	}
	return r
}

func TestImport(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		file, before := keysFile(t), s.fingerprint()
		golden := func(name string, args ...string) {
			t.Helper()
			shown := append([]string(nil), args...)
			for n, arg := range shown {
				shown[n] = strings.ReplaceAll(arg, file, "keys.csv")
			}
			golden(t, name, shown, asFile(s.run(args...), file))
		}
		golden("import-proposed", "import", "mail", file, "--header")
		golden("import-proposed-json", "import", "mail", file, "--header", "--json")
		assert.Equal(t, before, s.fingerprint(), "something was changed")
		golden("import", "import", "mail", file, "--header", "--reason", "the table of our own", "--by", "ada", "--yes")
		golden("import-again", "import", "mail", file, "--header", "--reason", "the table of our own", "--by", "ada", "--yes")
		golden("explain-imported", "explain", id(60))
		assert.False(t, s.mail(message.NewMessage(id(61), []byte("as it comes")), func(context.Context) {}))
		golden("import-open", "import", "billing", "--query", "SELECT uuid, received_at / 1000000 FROM millrace_messages WHERE id = 4")
	}))
}

func TestImportByQuery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		kinds := map[string]string{"postgres": "TIMESTAMPTZ", "mysql": "DATETIME(6)", "sqlite": "DATETIME"}
		s.exec(`CREATE TABLE processed (id VARCHAR(60) PRIMARY KEY, at ` + kinds[s.db.Dialect] + `)`)
		handled := time.Now().Add(-2 * day).UTC().Truncate(time.Second)
		for n := 70; n < 73; n++ {
			s.exec(`INSERT INTO processed VALUES (?, ?)`, id(n), handled)
		}
		s.exec(`INSERT INTO processed VALUES ('no time', NULL)`)
		all := []string{"import", "mail", "--query", "SELECT id, at FROM processed", "--reason", "x", "--yes"}
		r := s.run(all...)
		require.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, "   4  stored")
		assert.Equal(t, 3, s.count(`SELECT COUNT(*) FROM millrace_claims WHERE processed_at = ?`, handled.UnixMicro()))
		for _, wrong := range []struct{ query, want string }{
			{"SELECT id, at, 1 FROM processed", "--query returns 3 columns, and the key has 1 parts"},
			{"SELECT nothing FROM processed", "--query: "},
			{"DELETE FROM processed", "--query: "},
		} {
			r := s.run("import", "mail", "--query", wrong.query, "--reason", "x", "--yes")
			assert.Equal(t, 2, r.code, "%s: %s %s", wrong.query, r.out, r.err)
			assert.Contains(t, r.err, wrong.want)
		}
		assert.Equal(t, 4, s.count(`SELECT COUNT(*) FROM processed`))
	}))
}

// TestImportedTimes: a time that cannot be is refused, and the zone of a session changes none.
func TestImportedTimes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		for _, wrong := range []string{"NaN", "-1", "inf", "tomorrow"} {
			r := s.piped("x,"+wrong+"\n", "import", "mail", "--reason", "x", "--yes")
			assert.Equal(t, 1, r.code, wrong)
			assert.Contains(t, r.out, "   1  refused", wrong)
		}
		if s.db.Dialect == "sqlite" {
			return
		}
		kinds := map[string]string{"postgres": "TIMESTAMPTZ", "mysql": "TIMESTAMP"}
		s.exec(`CREATE TABLE processed (id VARCHAR(60) PRIMARY KEY, at ` + kinds[s.db.Dialect] + `)`)
		s.exec(`INSERT INTO processed VALUES ('x', CURRENT_TIMESTAMP)`)
		zone, sign := "TimeZone=Asia%2FTokyo", "?"
		if s.db.Dialect == "mysql" {
			zone = "time_zone=%27%2B09%3A00%27"
		}
		if strings.Contains(s.db.DSN, "?") {
			sign = "&"
		}
		cmd := command(t.Context(), s.db.DSN+sign+zone, "import", "mail", "--query", "SELECT id, at FROM processed", "--reason", "x", "--yes")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		assert.Contains(t, string(out), "   1  stored")
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 4 AND processed_at > ? AND processed_at < ?`,
			time.Now().Add(-time.Hour).UnixMicro(), time.Now().Add(time.Hour).UnixMicro()))
	}))
}

func TestImportForANewConsumer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		keys := "shop,1,2026-11-22T08:00:00Z\nshop,2\n"
		done := []string{"--reason", "x", "--yes"}
		golden(t, "import-unknown", []string{"import", "stock"}, s.piped(keys, "import", "stock"))
		r := s.piped(keys, append([]string{"import", "stock", "-", "--new", "--key", "cloudevent", "--retention", "forever"}, done...)...)
		require.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, "   2  stored")
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_consumers WHERE name = ? AND retention = 0`, []byte("stock")))
		r = s.piped(keys, append([]string{"import", "stock"}, done...)...)
		require.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, "   2  known already")
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_consumers WHERE name = ? AND retention = 0`, []byte("stock")))
	}))
}

func TestWrongImports(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	before := s.fingerprint()
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"import", 2, "accepts between 1 and 2 arg(s), received 0"},
		{"import mail no-such-file", 2, "open no-such-file: no such file or directory"},
		{"import mail file --query SELECT", 2, `keys come from --query or from "file"`},
		{"import mail --query SELECT --header", 2, "--header goes with lines"},
		{"import mail --rate 0", 2, "--rate 0 is less than 1"},
		{"import mail --key uuid", 2, "--key and --retention go with --new"},
		{"import mail --new", 2, `consumer "mail", epoch 0 is known: leave out --new`},
		{"import post --new --key uid", 2, `"uid" is not a key`},
		{"import post --new --retention week", 2, `--retention "week" is neither a duration`},
		{"import post --new --retention 1m", 2, "Retention 1m0s is below"},
		{"import post --new --key first(uuid,payload)", 1, "cannot be made from parts"},
		{"import mail --epoch 7", 3, `there is no consumer "mail" with epoch 7`},
	} {
		r := s.piped("a\n", append(strings.Fields(c.args), "--reason", "x", "--yes")...)
		assert.Equal(t, c.code, r.code, "%s: %s", c.args, r.err)
		assert.Contains(t, r.err, c.want, c.args)
	}
	assert.Equal(t, before, s.fingerprint(), "something was changed")
	r := s.piped("", "import", "mail", "--reason", "x", "--yes")
	assert.Zero(t, r.code)
	assert.Contains(t, r.out, "Nothing was read.")
}
