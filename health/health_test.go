package health_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/health"
	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(3)
	os.Exit(m.Run())
}

func TestHandler(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		events := &rig.Events{}
		store := rig.NewStore(t, db.DB, inbox.Config{Logger: events})
		require.NoError(t, store.Migrate(t.Context()))
		out := rig.NewOutbox(t, db.DB, outbox.Config{Standalone: true})
		config := health.Config{Store: store, Outbox: out, Interval: time.Nanosecond, Timeout: rig.Patience}
		lenient := handler(t, config)
		config.Strict = true
		strict := handler(t, config)
		config.Strict, config.Interval = false, time.Hour
		slow := handler(t, config)
		config.Interval, config.Timeout = time.Nanosecond, time.Nanosecond
		hasty := handler(t, config)

		for _, h := range []http.Handler{lenient, strict, slow} {
			code, report := check(t, h)
			assert.Equal(t, http.StatusOK, code)
			assert.Equal(t, health.Report{Status: health.OK, Problems: []health.Problem{}}, report)
		}
		code, report := check(t, hasty)
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, health.Report{Status: health.Down, Problems: []health.Problem{{Kind: "database-out", Severity: "error"}}}, report)

		h := millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		for _, payload := range []string{"one", "a secret"} { // which collide
			_, err := h(message.NewMessage("7", []byte(payload)))
			require.NoError(t, err)
		}
		require.NoError(t, out.Publish("invoices", message.NewMessage("8", nil)))
		db.Do(t, `INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 1, 64, 64)`)
		db.Do(t, `INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (7, 'killed', 1, ?)`, time.Now().Add(-time.Hour).UnixMicro())
		code, report = check(t, lenient)
		assert.Equal(t, http.StatusOK, code)
		assert.Equal(t, health.Degraded, report.Status)
		if assert.Len(t, report.Problems, 2) {
			assert.Equal(t, "no-relay", report.Problems[0].Kind)
			assert.InDelta(t, 3600, report.Problems[0].Seconds, 60)
			report.Problems[1].Seconds = 0
			assert.Equal(t, health.Problem{Kind: "stuck", Severity: "error", Consumer: "billing", Count: 1}, report.Problems[1])
		}
		code, _ = check(t, strict)
		assert.Equal(t, http.StatusServiceUnavailable, code)
		_, report = check(t, slow)
		assert.Equal(t, health.OK, report.Status, "the tables were read again within Interval")

		db.Do(t, `ALTER TABLE millrace_outbox_relays RENAME TO gone`)
		code, report = check(t, lenient)
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, health.Down, report.Status)
		assert.Equal(t, "unreadable", report.Problems[0].Kind)

		require.NoError(t, db.Close())
		before := len(events.Logs())
		for range 2 {
			code, report = check(t, lenient)
			assert.Equal(t, http.StatusServiceUnavailable, code)
			assert.Equal(t, health.Down, report.Status)
			assert.Len(t, report.Problems, 1)
		}
		assert.Equal(t, before, len(events.Logs()), "it was down before")
	})
}

func TestADriverThatDoesNotHeedItsContext(t *testing.T) {
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		pool := faults.Open(t, db)
		store := rig.NewStore(t, pool.DB, inbox.Config{})
		require.NoError(t, store.Migrate(t.Context()))
		h := handler(t, health.Config{Store: store, Timeout: 5 * time.Second, Interval: time.Nanosecond})
		hangs, looks := make(chan struct{}), atomic.Int32{}
		pool.Set(faults.Plan{Before: func(context.Context, string) error {
			looks.Add(1)
			<-hangs
			return nil
		}})
		var answers []<-chan health.Report
		for range 8 {
			answer := make(chan health.Report, 1)
			go func() { _, report := check(t, h); answer <- report }()
			answers = append(answers, answer)
		}
		for _, answer := range answers {
			assert.Equal(t, health.Down, rig.Within(t, answer, "a check is not answered").Status)
		}
		assert.EqualValues(t, 1, looks.Load(), "checks at once share a look")
		pool.Set(faults.Plan{})
		close(hangs)
		rig.Eventually(t, "the database answers again", func() bool { code, _ := check(t, h); return code == http.StatusOK })

		h = handler(t, health.Config{Store: store, Timeout: time.Minute, Interval: time.Nanosecond}) // a busy machine is no database that is out
		for how, trip := range map[string]func(){"panics": func() { panic("a driver") }, "exits": runtime.Goexit} {
			pool.Set(faults.Plan{Before: func(context.Context, string) error { trip(); return nil }})
			code, report := check(t, h)
			assert.Equal(t, http.StatusServiceUnavailable, code, how)
			assert.Equal(t, health.Report{Status: health.Down, Problems: []health.Problem{{Kind: "unreadable", Severity: "error"}}}, report, how)
		}
	})
}

func TestSettings(t *testing.T) {
	t.Parallel()
	_, err := health.NewHandler(health.Config{Timeout: -1, Interval: -1})
	for _, part := range []string{"a Store is required", "Timeout -1ns", "Interval -1ns"} {
		require.ErrorContains(t, err, part)
	}
	posted := httptest.NewRecorder()
	(&health.Handler{}).ServeHTTP(posted, httptest.NewRequest(http.MethodPost, "/healthz", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, posted.Code)
	rig.DefaultsAsCommented(t, map[string]string{"Config.Timeout": "2 seconds", "Config.Interval": "5 seconds"}, [2]string{"health.go", "Config"})
}

func handler(t *testing.T, config health.Config) http.Handler {
	t.Helper()
	h, err := health.NewHandler(config)
	require.NoError(t, err)
	return h
}

func check(t *testing.T, h http.Handler) (code int, report health.Report) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	assert.NotContains(t, answer.Body.String(), "secret", "it shows a text of a message")
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &report))
	return answer.Code, report
}
