package dashboard_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// mute is a broker that panics.
type mute struct{}

func (mute) Publish(string, ...*message.Message) error { panic("a broker") }
func (mute) Close() error                              { return nil }

// The http.Server ends a request that panics. Nothing may be lost by it, nor held.
func TestARequestThatPanics(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	b.pages = b.Dashboard(func(c *dashboard.Config) { c.Operator = func(*http.Request) string { panic("who asks?") } })
	for _, action := range actions {
		assert.PanicsWithValue(t, "who asks?", func() { b.send(attempt(b, action)) }, action)
	}
	for _, page := range pages {
		assert.PanicsWithValue(t, "who asks?", func() { b.get(page) }, page)
	}
	b.untouched()

	b = newBed(t, testdb.On(t, "sqlite"))
	b.Put(consumer, stuck.Order(1, ""))
	_, err := b.DB.ExecContext(t.Context(), `UPDATE millrace_messages SET status = 6`)
	require.NoError(t, err)
	redeliver := func(to message.Publisher) func(*dashboard.Config) {
		return func(c *dashboard.Config) { c.Redeliver = to }
	}
	b.pages = b.Dashboard(redeliver(mute{}))
	page := b.get("message?key=order-0001")
	retry := append(b.fields(page, "message-retry"), "reason", "try")
	assert.PanicsWithValue(t, "a broker", func() { b.post("message-retry", retry...) })
	assert.Equal(t, 1, b.Count(`SELECT COUNT(*) FROM millrace_messages`), "it stays to be tried again")
	assert.Eventually(t, func() bool { return b.DB.Stats().InUse == 0 }, rig.Patience, time.Millisecond)
	sent := &sink{}
	b.pages = b.Dashboard(redeliver(sent))
	b.done(b.post("message-retry", retry...))
	assert.Equal(t, []string{"orders"}, sent.topics)
}

// The page about several databases looks at each in a goroutine of its own, and Run in one of the service's, where
// nobody recovers: a panic there would end the process.
func TestALookInTheBackgroundThatPanics(t *testing.T) {
	s := stuck.New(t, testdb.On(t, "sqlite"))
	pool := faults.Open(t, s.DB)
	h, err := dashboard.New(rig.NewStore(t, pool.DB, inbox.Config{}), dashboard.Config{Logger: s.Log})
	require.NoError(t, err)
	pool.Set(faults.Plan{Before: func(context.Context, string) error { panic("a driver") }})
	all, err := dashboard.NewDatabases(map[string]*dashboard.Handler{"eu": h})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	all.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Contains(t, w.Body.String(), "panic: a driver")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	rig.Eventually(t, "Run says so", func() bool { return strings.Contains(strings.Join(s.Log.Logs(), "\n"), "a driver") })
	cancel()
	require.NoError(t, rig.Within(t, ended, "Run has gone on"))
}
