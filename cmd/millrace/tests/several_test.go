package tests_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// nowhere is a database that cannot be reached.
const nowhere = "postgres://ada:hidden-password@127.0.0.1:1/shop"

// branches are the databases of a service that has one for each of its tenants, of which one is down.
func branches(t *testing.T) (eu, us *shop, dsn string) {
	t.Helper()
	eu, us = newShop(t, testdb.On(t, "postgres")), newShop(t, testdb.On(t, "sqlite"))
	us.exec(`DELETE FROM millrace_messages`)
	return eu, us, "eu=" + eu.db.DSN + "\ndown=" + nowhere + " us=" + us.db.DSN
}

// TestSeveralDatabasesAreRead: one that is down hinders no other, and is the exit code.
func TestSeveralDatabasesAreRead(t *testing.T) {
	t.Parallel()
	eu, us, dsn := branches(t)
	for _, args := range [][]string{{"status"}, {"list"}, {"list", "--groups"}, {"outbox", "list"}, {"steps", "list"}, {"outbox", "shards"}, {"replay", "list"}} {
		r := call(t, dsn, args...)
		assert.Equal(t, 4, r.code, "%v: %s", args, r.err)
		assert.Equal(t, args[0] == "status", strings.Contains(r.out, "\n  millrace --on eu list"), "the next command is for the same database")
		parts := strings.Split(regexp.MustCompile(`millrace --on \w+ `).ReplaceAllString(r.out, "millrace "), "== ")
		require.Len(t, parts, 4, r.out)
		assert.Equal(t, "eu\n"+call(t, eu.db.DSN, args...).out, strings.TrimSuffix(parts[1], "\n"), args)
		assert.Contains(t, parts[2], "down\nthe database cannot be reached")
		assert.Equal(t, "us\n"+call(t, us.db.DSN, args...).out, parts[3], args)
		assert.NotContains(t, r.out+r.err, "hidden-password")
	}
	r := call(t, dsn, "list", "--json")
	documents := json.NewDecoder(strings.NewReader(r.out))
	for _, name := range []string{"eu", "down", "us"} {
		var d struct {
			Database, Error string
			Result          struct{ Messages []any }
		}
		require.NoError(t, documents.Decode(&d))
		assert.Equal(t, name, d.Database)
		assert.Equal(t, name == "down", d.Error != "", d.Error)
		assert.Equal(t, name == "eu", len(d.Result.Messages) > 0)
	}
	assert.ErrorIs(t, documents.Decode(new(any)), io.EOF)
}

// TestOneOfSeveralDatabases: what changes something wants to know where.
func TestOneOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	_, us, dsn := branches(t)
	for _, args := range [][]string{
		{"retry", "4"}, {"discard", "4"}, {"purge"}, {"pause", "billing", "--reason", "x"}, {"outbox", "retry", "5"}, {"replay", "cancel", "may"}, {"schema"},
	} {
		r := call(t, dsn, args...)
		assert.Equal(t, 2, r.code, args)
		assert.Contains(t, r.err, "choose it with --on; there are: eu, down, us", args)
	}
	r := call(t, dsn, "--on", "asia", "status")
	assert.Equal(t, 2, r.code)
	assert.Contains(t, r.err, "--on asia: no database has this name; there are: eu, down, us")

	r = call(t, dsn, "--on", "eu", "pause", "billing", "--reason", "x", "--yes")
	assert.Equal(t, 0, r.code, r.err)
	assert.Contains(t, call(t, dsn, "--on", "eu", "status").out, "paused")
	assert.NotContains(t, call(t, us.db.DSN, "status").out, "paused")
}

// TestAMessageInOneOfSeveralDatabases: it is enough that one of them knows it.
func TestAMessageInOneOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	eu, us, _ := branches(t)
	both := []string{"--dsn", "us=" + us.db.DSN, "--dsn", "eu=" + eu.db.DSN}
	us.exec(`DELETE FROM millrace_claims`)
	us.exec(`DELETE FROM millrace_dropped`)
	us.exec(`DELETE FROM millrace_history`)
	us.exec(`DELETE FROM millrace_audit`)
	r := call(t, "", append(both, "explain", id(20))...)
	assert.Equal(t, 0, r.code, r.out+r.err)
	assert.Contains(t, r.out, "== us\nthe inbox knows no message")
	assert.Contains(t, r.out, "mail, epoch 0: handled")
	assert.Equal(t, 1, call(t, "", append(both, "explain", "nobody")...).code)
	assert.Equal(t, 3, call(t, "", append(both, "list", "--consumer", "nobody")...).code)
}

// TestWithoutADatabaseAmongSeveral: what needs none, and what works on one, prints its document as it is.
func TestWithoutADatabaseAmongSeveral(t *testing.T) {
	t.Parallel()
	_, us, dsn := branches(t)
	for _, args := range [][]string{{"schema", "--json", "sqlite"}, {"list", "--json", "--on", "us"}} {
		r := call(t, dsn, args...)
		assert.Equal(t, 0, r.code, r.err)
		assert.JSONEq(t, call(t, us.db.DSN, args[:2]...).out, r.out, args)
	}
	r := call(t, dsn, "check", "--engine", "--node", us.db.DSN)
	assert.Equal(t, 2, r.code)
	assert.Contains(t, r.err, "choose it with --on")
}

func TestWrongNamesOfDatabases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, says string }{
		{"--dsn sqlite:a.db --dsn sqlite:b.db", "name each, as in --dsn eu="},
		{"--dsn a=sqlite:a.db --dsn a=sqlite:b.db", "two databases are named a"},
	} {
		r := call(t, "", append(strings.Fields(c.args), "status")...)
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, c.says)
	}
	// A DSN that has white space and = is one DSN.
	r := call(t, "ada:a word=b c=d@tcp(127.0.0.1:1)/shop", "status")
	assert.Equal(t, 4, r.code, r.err)
	assert.NotContains(t, r.err, "word")
}

func TestUIOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	_, _, dsn := branches(t)
	cmd := command(t.Context(), dsn, "ui", "--listen", "127.0.0.1:0", "--by", "ann")
	told, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(told)
	require.True(t, lines.Scan(), "it says where it is")
	_, address, found := strings.Cut(lines.Text(), "http://")
	require.True(t, found, lines.Text())
	for page, says := range map[string]string{"": `href="down/"`, "eu/": "billing", "us/": "mail"} {
		response, err := http.Get("http://" + address + page)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		assert.Equal(t, http.StatusOK, response.StatusCode)
		assert.Contains(t, string(text), says)
		assert.NotContains(t, string(text), "hidden-password")
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	assert.False(t, lines.Scan(), lines.Text())
	assert.NoError(t, cmd.Wait())
}
