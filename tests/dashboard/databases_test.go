package dashboard_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestSeveralDatabases: each is below its name, and one that is gone hinders no other.
func TestSeveralDatabases(t *testing.T) {
	services, handlers := map[string]*stuck.Service{}, map[string]*dashboard.Handler{}
	for name, kind := range map[string]string{"asia": "sqlite", "eu": "postgres", "us": "mysql"} {
		s := stuck.New(t, testdb.On(t, kind))
		h, err := dashboard.New(s.Store, dashboard.Config{
			Outbox: s.Outbox, Logger: s.Log, Operator: func(*http.Request) string { return stuck.Operator },
		})
		require.NoError(t, err)
		services[name], handlers[name] = s, h
	}
	services["eu"].Serve("billing")
	services["eu"].Put("billing", stuck.Order(1, "no such account"))
	services["eu"].AwaitStuck(1)
	services["us"].Serve("shipping")
	require.NoError(t, services["asia"].DB.Close())
	all, err := dashboard.NewDatabases(handlers)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(stuck.Prefix+"/", all)
	b := &bed{services["eu"], mux}

	var first answer
	rig.Eventually(t, "one of them alone has no figures", func() bool { // a database may be late
		first = b.get("")
		b.shows(first, `href="asia/"`, `href="eu/"`, `href="us/"`)
		return strings.Count(first.text, `colspan="6"`) == 1
	})
	b.shows(b.get("eu/inbox"), "billing", "<title>Inbox · eu · Millrace", `href="./../">Millrace`)
	done := b.post("eu/consumers-pause", "id", "0", "consumer", "billing", "epoch", "0", "reason", "to look")
	assert.Equal(t, http.StatusSeeOther, done.StatusCode)
	assert.Equal(t, 1, services["eu"].Audited("pause", "to look"))
	us := b.get("us/inbox")
	b.shows(us)
	assert.NotContains(t, us.text, "billing")
	assert.GreaterOrEqual(t, b.get("asia/inbox").StatusCode, 500)

	for _, page := range []string{"eu", "eu?window=6h"} {
		moved := b.get(page)
		assert.Equal(t, http.StatusPermanentRedirect, moved.StatusCode)
		assert.True(t, strings.HasPrefix(moved.Header.Get("Location"), "./eu/"), moved.Header)
	}
	for _, page := range []string{"nowhere", "nowhere/inbox", "eu/nowhere", "inbox"} {
		assert.Equal(t, http.StatusNotFound, b.get(page).StatusCode, page)
	}
	for _, page := range []string{first.text, us.text} {
		_, file, _ := strings.Cut(page, `<link rel="stylesheet" href="./`)
		file, _, _ = strings.Cut(file, `"`)
		assert.Equal(t, http.StatusOK, b.get(file).StatusCode, file)
	}
	named := http.NewServeMux() // like one of the databases
	named.Handle("/us/", http.StripPrefix("/us", all))
	inside := httptest.NewRecorder()
	named.ServeHTTP(inside, httptest.NewRequest(http.MethodGet, "/us/us/inbox", nil))
	assert.Contains(t, inside.Body.String(), "<title>Inbox · us")
	post := httptest.NewRecorder()
	mux.ServeHTTP(post, httptest.NewRequest(http.MethodPost, stuck.Prefix+"/", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, post.Code)
}

// TestADatabaseThatHangs: the page about all comes even if a driver, such as lib/pq, does not heed the end of a context.
func TestADatabaseThatHangs(t *testing.T) {
	handlers, pools := map[string]*dashboard.Handler{}, map[string]*faults.Faults{}
	for _, name := range []string{"asia", "eu", "us"} {
		pools[name] = faults.Open(t, testdb.On(t, "sqlite"))
		store := rig.NewStore(t, pools[name].DB, inbox.Config{})
		require.NoError(t, store.Migrate(t.Context()))
		var err error
		handlers[name], err = dashboard.New(store, dashboard.Config{})
		require.NoError(t, err)
	}
	hangs := make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	pools["eu"].Set(faults.Plan{Before: func(context.Context, string) error { <-hangs; return nil }})
	all, err := dashboard.NewDatabases(handlers)
	require.NoError(t, err)
	page := make(chan string, 1)
	rig.Eventually(t, "the others have figures", func() bool { // they may be late as well
		go func() {
			w := httptest.NewRecorder()
			all.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			page <- w.Body.String()
		}()
		text := rig.Within(t, page, "the page comes")
		assert.Regexp(t, `(?s)href="asia/".*href="eu/".*took too long.*href="us/"`, text)
		return strings.Count(text, `colspan="6"`) == 1
	})
}

func TestWrongDatabases(t *testing.T) {
	_, err := dashboard.NewDatabases(nil)
	require.ErrorContains(t, err, "there is none")
	_, err = dashboard.NewDatabases(map[string]*dashboard.Handler{"a/b": nil, "": nil})
	require.ErrorContains(t, err, `the name "a/b" is not`)
	require.ErrorContains(t, err, `the name "" is not`)
	require.ErrorContains(t, err, "a/b has no Handler")
}
