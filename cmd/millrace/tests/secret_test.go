package tests_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// marker is a password that must not be seen.
const marker = "S3cret-Marker"

// wrong are connection strings that fail in all ways.
var wrong = []struct {
	name, dsn string
	code      int
	says      string
}{
	{"nothing listens, PostgreSQL", "postgres://ada:" + marker + "@127.0.0.1:1/shop", 4, "refused"},
	{"nothing listens, MySQL", "mysql://ada:" + marker + "@127.0.0.1:1/shop", 4, "refused"},
	{"nothing listens, go-sql-driver", "ada:" + marker + "@tcp(127.0.0.1:1)/shop", 4, "refused"},
	{"no such host", "postgres://ada:" + marker + "@millrace.invalid/shop", 4, "millrace.invalid"},
	{"in the query", "postgres://127.0.0.1:1/shop?user=ada&password=" + marker, 4, "refused"},
	{"a password that is not escaped", "postgres://ada:" + marker + "%zz@127.0.0.1/shop", 2, "not a URL"},
	{"a slash that is not escaped", "postgres://ada:p@ss/" + marker + "@127.0.0.1:1/shop", 2, "not a URL"},
	{"a question mark that is not escaped", "postgres://ada:p@ss?" + marker + "@127.0.0.1:1/shop?sslmode=disable", 2, "not a URL"},
	{"a hash that is not escaped, MySQL", "mysql://ada:p@ss#" + marker + "@127.0.0.1:1/shop", 2, "not a URL"},
	{"a port that is none", "postgres://ada:" + marker + "@127.0.0.1:port/shop", 2, ""},
	{"a setting that is wrong", "postgres://ada:" + marker + "@127.0.0.1/shop?sslmode=often", 2, "sslmode"},
	{"a wrong URL, MySQL", "mysql://ada:" + marker + "@127.0.0.1/shop?timeout=soon", 2, "cannot be parsed"},
	{"a wrong string, MySQL", "ada:" + marker + "@tcp(127.0.0.1:1)", 2, "cannot be parsed"},
	{"another kind", "oracle://ada:" + marker + "@127.0.0.1/shop", 2, "does not begin with"},
	{"a key and value string", "host=127.0.0.1 user=ada password=" + marker, 2, "does not begin with"},
	{"a file that is not there", "sqlite:/nowhere/" + marker + ".db", 4, "no file at the path"},
	{"in memory", "sqlite::memory:", 2, "name a file"},
	{"nothing", "", 2, "MILLRACE_DSN"},
}

func TestWrongDSNs(t *testing.T) {
	t.Parallel()
	for _, w := range wrong {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range []result{call(t, w.dsn, "status"), call(t, "", "check", "--dsn", w.dsn)} {
				assert.Equal(t, w.code, r.code, r.err)
				assert.Contains(t, r.err, w.says)
				assert.Empty(t, r.out)
				hidden(t, r)
				if w.code == 2 {
					assert.NotContains(t, r.err, "127.0.0.1", "nor is the rest of it shown")
				}
			}
		})
	}
}

// login returns the DSN of a user of its own with this password, or with its name for one:
// the server may ask for passwords, and may let anybody in.
func (s *shop) login(password string) *url.URL {
	s.Helper()
	u, err := url.Parse(s.db.DSN)
	require.NoError(s, err)
	name := "mill_" + strings.ToLower(rand.Text()[:10])
	password = cmp.Or(password, name)
	s.exec("CREATE ROLE " + name + " LOGIN IN ROLE CURRENT_USER PASSWORD '" + strings.ReplaceAll(password, "'", "''") + "'")
	s.Cleanup(func() {
		_, err := s.db.ExecContext(context.WithoutCancel(s.Context()), "DROP ROLE "+name)
		assert.NoError(s, err)
	})
	u.User = url.UserPassword(name, password)
	return u
}

func hidden(t *testing.T, r result) {
	t.Helper()
	for _, secret := range []string{marker, url.QueryEscape(marker), strings.ToLower(marker)} {
		assert.NotContains(t, r.out+r.err, secret)
	}
}

// TestThePasswordIsNeverShown: not where it was put by mistake, and not in what is stored.
func TestThePasswordIsNeverShown(t *testing.T) {
	t.Parallel()
	dsn := "postgres://ada:" + marker + "@127.0.0.1:1/shop"
	for _, args := range [][]string{
		{dsn}, {"status", dsn}, {"explain", "--since", dsn}, {"list", "--since", dsn}, {"retry", dsn}, {"--timeout", dsn, "status"},
		{"outbox", dsn}, {"schema", dsn}, {"outbox", "retry", "ada:" + marker + "@tcp(127.0.0.1)/shop"},
		{"status", "postgres://ada:p@" + marker + "@127.0.0.1/shop"}, {"status", "ada:p@" + marker + "@tcp(127.0.0.1)/shop"},
		{"status", "host=127.0.0.1 user=ada password=" + marker}, {"status", "host=127.0.0.1 password='a " + marker + "' user=ada"},
		{"status", "postgres://127.0.0.1/shop?password=" + marker + "&user=ada"},
	} {
		r := call(t, "", args...)
		assert.Equal(t, 2, r.code, "%q: %s", args, r.err)
		hidden(t, r)
	}
	s := newShop(t, testdb.On(t, "postgres"))
	u := s.login(marker)
	s.exec(`UPDATE millrace_messages SET last_error = ?`, []byte("connect to "+u.String()+": password "+marker))
	for _, args := range [][]string{{"list"}, {"list", "--json"}, {"list", "--groups"}, {"explain", id(4)}, {"check"}, {"status"}} {
		r := call(t, u.String(), args...)
		assert.Zero(t, r.code, r.err)
		hidden(t, r)
		assert.NotContains(t, r.out, "cret-Marker", "nor without its digit, in the shape of an error")
	}
	r := call(t, u.String(), "discard", "7")
	assert.Contains(t, r.err, "Nothing was changed in "+u.User.Username()+"@"+u.Host+u.Path+". To go on, add --reason")
	hidden(t, r)
}

// TestThePasswordIsNotShownInJSON: there some characters are written in another way.
func TestThePasswordIsNotShownInJSON(t *testing.T) {
	t.Parallel()
	const password = `S3cret<&>"\` + marker
	s := newShop(t, testdb.On(t, "postgres"))
	u := s.login(password)
	s.exec(`UPDATE millrace_messages SET last_error = ?`, []byte("connect to "+u.String()+": password "+password))
	for _, args := range [][]string{{"list", "--json"}, {"list", "--groups", "--json"}, {"explain", id(4), "--json"}, {"explain", id(4)}} {
		r := call(t, u.String(), args...)
		assert.Zero(t, r.code, r.err)
		assert.NotContains(t, r.out+r.err, "S3cret")
		hidden(t, r)
	}
}

// TestThePasswordIsNotShownInYAML: where a text is in quotes, those in it are doubled.
func TestThePasswordIsNotShownInYAML(t *testing.T) {
	t.Parallel()
	const password = `S3cret'"` + marker
	s := newShop(t, testdb.On(t, "postgres"))
	u := s.login(password)
	s.exec(`UPDATE millrace_messages SET last_error = ?`, []byte("password: "+password))
	for _, args := range [][]string{{"list", "-o", "yaml"}, {"explain", id(4), "-o", "yaml"}} {
		r := call(t, u.String(), args...)
		assert.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, "password: [hidden]")
		assert.NotContains(t, r.out+r.err, "S3cret")
		hidden(t, r)
	}
}

// TestThePasswordIsNotShownInCSV: where quotes are doubled, and a long text is written in several parts.
func TestThePasswordIsNotShownInCSV(t *testing.T) {
	t.Parallel()
	const password = `S3cret"` + marker
	s := newShop(t, testdb.On(t, "postgres"))
	u := s.login(password)
	const entries = 200
	for range entries {
		s.exec(`INSERT INTO millrace_audit (at, actor, action, reason, consumer, message_id, detail) VALUES (0, ?, ?, ?, 0, ?, ?)`,
			[]byte("ada"), []byte("retry"), []byte(strings.Repeat(password, 20)), []byte{}, []byte{})
	}
	r := call(t, u.String(), "audit", "-o", "csv")
	assert.Zero(t, r.code, r.err)
	assert.Equal(t, entries, strings.Count(r.out, "ada,retry"))
	for _, part := range []string{"S3c", "cret", "Mark", "arker", `""`} {
		assert.NotContains(t, r.out, part)
	}
	hidden(t, r)
}

// TestThePasswordIsNotShownInPart: neither where a text is cut off, nor where its numbers are.
func TestThePasswordIsNotShownInPart(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "postgres"))
	u := s.login(marker)
	for _, before := range []int{60, 70, 90} {
		s.exec(`UPDATE millrace_messages SET last_error = ?, reason = ?`, []byte(strings.Repeat("x", before)+" "+marker), []byte{})
		for _, args := range [][]string{{"list"}, {"list", "--groups"}, {"list", "--groups", "--json"}} {
			r := call(t, u.String(), args...)
			assert.Zero(t, r.code, r.err)
			assert.Contains(t, r.out, "xxxx")
			assert.NotContains(t, r.out, "cret-")
		}
	}
}

// TestAPasswordOfDigits is hidden in texts, and no number of the results is taken for it.
func TestAPasswordOfDigits(t *testing.T) {
	t.Parallel()
	const password = "1000"
	s := newShop(t, testdb.On(t, "postgres"))
	u := s.login(password)
	s.exec(`UPDATE millrace_messages SET id = 1000, last_error = ? WHERE id = 4`, []byte("password: "+password+" of "+u.String()))
	s.exec(`UPDATE millrace_messages SET id = 210001, reason = ?, last_error = ? WHERE id = 5`, []byte{}, []byte("password "+password))
	for _, form := range []string{"text", "json", "yaml"} {
		r := call(t, u.String(), "list", "--status", "parked", "-o", form)
		require.Zero(t, r.code, r.err)
		assert.NotRegexp(t, `password:? 1000`, r.out)
		assert.NotContains(t, r.out, u.User.String())
		assert.Contains(t, r.out, "password: [hidden]")
		assert.Contains(t, r.out, "password [hidden]")
		switch form {
		case "text":
			assert.Regexp(t, `(?m)^ *1000  billing `, r.out)
			assert.Regexp(t, `(?m)^210001  billing `, r.out)
		case "json":
			assert.True(t, json.Valid([]byte(r.out)), r.out)
			assert.Contains(t, r.out, `"id": 1000,`)
			assert.Contains(t, r.out, `"id": 210001,`)
		default:
			assert.Contains(t, r.out, "id: 1000\n")
		}
	}
}

// TestANameIsNoSecret: a password that everybody knows must not spoil what is printed.
func TestANameIsNoSecret(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "postgres"))
	u := s.login("")
	r := call(t, u.String(), "list", "--consumer", u.User.Username())
	assert.Contains(t, r.err, "no consumer \""+u.User.Username()+"\"")
}

// TestAConsumersNameIsNoSecret, and neither is a word of the command's own texts.
func TestAConsumersNameIsNoSecret(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "postgres"))
	r := call(t, s.login("billing").String(), "list", "--status", "parked")
	assert.Contains(t, r.out, " billing ", r.err)
	r = call(t, s.login("reason").String(), "retry", "4")
	assert.Contains(t, r.err, "add --through-outbox --reason '…' --yes")
	for _, r := range []result{
		call(t, "ada:"+marker+"@tcp(127.0.0.1:1)", "status"), call(t, s.db.DSN, "check"), call(t, "", "status", "--dsn", s.db.DSN, "--dsn", s.db.DSN),
		call(t, s.db.DSN, "replay", "run", "x", "--from", "rabbitmq", "--queue", "dead", "--reason", "x", "--yes"),
	} {
		assert.NotContains(t, r.out+r.err, "[hidden]", "of its own texts")
	}
}

func TestDSNForms(t *testing.T) {
	t.Parallel()
	lite := newShop(t, testdb.On(t, "sqlite"))
	file, _, _ := strings.Cut(strings.TrimPrefix(lite.db.DSN, "file:"), "?")
	maria := newShop(t, testdb.On(t, "mysql"))
	userHost, database, _ := strings.Cut(maria.db.DSN, ")/")
	user, host, _ := strings.Cut(userHost, "@tcp(")
	name, _, _ := strings.Cut(database, "?")
	for _, dsn := range []string{
		"sqlite:" + file, "sqlite://" + file, "file:" + file, "file:" + file + "?_pragma=busy_timeout(5000)",
		"mysql://" + user + "@" + host + "/" + name, "mysql://" + user + "@" + host + "/" + name + "?charset=utf8mb4",
	} {
		r := call(t, dsn, "list", "--limit", "1")
		assert.Zero(t, r.code, "%s: %s", dsn, r.err)
		assert.Contains(t, r.out, "RECEIVED")
	}
	gbk := "mysql://" + user + "@" + host + "/" + name + "?charset=gbk" // in which a key could be read as SQL
	r := call(t, gbk, "explain", "\xbf' OR 1 -- ")
	assert.Equal(t, 2, r.code, r.out)
	assert.Contains(t, r.err, "charset=gbk, in which the server can misread arguments: remove it, or set charset=utf8mb4")
	assert.Contains(t, call(t, gbk, "check").out, "character_set_client")
}
