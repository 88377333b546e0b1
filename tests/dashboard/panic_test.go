package dashboard_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
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
