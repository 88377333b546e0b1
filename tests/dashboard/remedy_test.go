package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestOperatorsMendWhatIsStuck(t *testing.T) {
	testdb.Conformance(t, remedyBodies)
}

const consumer = "billing"

// one is a service with one message that is stuck.
func one(t *testing.T, db *testdb.DB, options ...func(*dashboard.Config)) *bed {
	t.Helper()
	b := newBed(t, db, options...)
	b.Serve(consumer)
	b.Put(consumer, stuck.Order(1, "account 7 has no owner"))
	b.AwaitStuck(1)
	return b
}

var remedyBodies = []testdb.Body{
	{Name: "retry", Why: "the message is handled, and its story told", Run: func(t *testing.T, db *testdb.DB) {
		b := one(t, db, func(c *dashboard.Config) { c.Trace = "https://tempo.internal/trace/{trace}" })
		b.DB.Do(t, `UPDATE millrace_history SET trace = ?`, []byte(`4bf9"/<`))
		b.Mended.Store(true)
		b.DB.Do(t, `
			INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at, problem)
			VALUES (?, ?, ?, ?, ?, 0, 1, 1, 1, 1, ?)`, []byte("sixteen bytes  1"), []byte(""), []byte(consumer), keycode.Encode("order-0001"), []byte("payment"), []byte("the bank does not answer"))
		page := b.get("message?key=order-0001")
		b.shows(page, "step payment is in doubt", "the bank does not answer")
		b.shows(page, "account 7 has no owner", "failed terminal", "OrderPlaced", "7f3c-0001", "stored", "from topic orders")
		next := b.done(b.post("message-retry", append(b.fields(page, "message-retry"), "reason", "owner added")...))
		assert.Contains(t, next.text, "will be handled again")
		b.Await(0, `SELECT COUNT(*) FROM millrace_messages`)
		assert.Equal(t, 1, b.Audited("retry", "owner added"))
		b.shows(b.get("message?key=order-0001"), "completed", "retry by ada", "owner added", "invoice-of-order-0001", "invoices",
			"until it was closed", "attempt 1: ", "account 7 has no owner", `It ran in <a href="processes?name=`, " for ", `href="https://tempo.internal/trace/4bf9%22%2F%3C"`)
		b.refused(b.post("message-retry", "id", "1", "key", "order-0001", "reason", "again"), http.StatusNotFound, "Nothing was changed")
	}},
	{Name: "discard", Why: "the message counts as handled, with a reason", Run: func(t *testing.T, db *testdb.DB) {
		b := one(t, db)
		page := b.get("message?key=order-0001")
		b.done(b.post("message-discard", append(b.fields(page, "message-discard"), "reason", "a test order")...))
		assert.Equal(t, 1, b.Audited("discard", "a test order"))
		assert.Zero(t, b.Count(`SELECT COUNT(*) FROM millrace_messages`))
		b.shows(b.get("message?key=order-0001"), "discarded", "a test order")
		b.shows(b.get("audit"), "ada", "discard", "a test order", "order-0001")
		b.DB.Do(t, `INSERT INTO millrace_audit (at, actor, action, reason, consumer, message_id, detail)
			SELECT at, ?, action, ?, consumer, message_id, detail FROM millrace_audit, `+b.DB.Numbers(1100), []byte("bob"), []byte("=another"))
		b.DB.Do(t, `UPDATE millrace_consumers SET name = ?`, []byte("\x00lease\x00letters"))
		b.shows(b.get("audit?operator=ada&consumer=letters"), "a test order", `<option value="letters" selected>`)
		b.DB.Do(t, `UPDATE millrace_consumers SET name = ?`, []byte("billing"))
		page = b.get("audit?operator=ada&action=discard&consumer=billing&since=2020-01-01T00:00")
		b.shows(page, "a test order", `value="ada"`, "Remove the filter")
		assert.NotContains(t, page.text, "another")
		b.shows(b.get("audit?operator=bob"), "audit?before=", "&amp;operator=bob")
		file := b.get("audit.csv?operator=bob").text
		assert.Equal(t, 1101, strings.Count(file, "\n"))
		assert.Equal(t, 1100, strings.Count(file, ",'=another,"), "a spreadsheet takes it for text")
		for _, filter := range []string{"operator=eve", "action=retry", "consumer=nobody", "until=2020-01-01T00:00", "since=2100-01-01T00:00"} {
			b.shows(b.get("audit?"+filter), "No entry matches.")
		}
		b.refused(b.get("audit?since=yesterday"), http.StatusBadRequest, "no date and time")
	}},
	{Name: "a look at a result", Why: "what a handler kept is hidden as a payload is, and shown to who says why", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer)
		b.Serve("shipping")
		for _, name := range []string{consumer, "shipping"} {
			msg := stuck.Order(1, "")
			msg.Metadata.Set("keeps", "paid <b>by</b> "+name)
			b.Put(name, msg)
		}
		b.Await(0, `SELECT COUNT(*) FROM millrace_messages`)
		page := b.get("message?key=order-0001")
		b.shows(page, "Result of billing", "Result of shipping")
		assert.NotContains(t, page.text, "paid")
		assert.NotContains(t, b.get("message?key=order-0001&consumer=billing&epoch=0").text, "paid")
		fields := b.fields(page, "message-result")
		b.refused(b.post("message-result", fields...), http.StatusUnprocessableEntity, "Say why")
		shown := b.post("message-result", append(fields, "reason", "did it pay?")...)
		b.shows(shown, "paid \\u003cb\\u003eby\\u003c/b\\u003e billing", "Show the result")
		assert.NotContains(t, shown.text, "e shipping", "that of another consumer")
		assert.Equal(t, "no-store", shown.Header.Get("Cache-Control"))
		assert.Equal(t, 1, b.Audited("reveal", "did it pay?"))
		b.shows(b.get("message?key=order-0001"), "reveal by ada", "did it pay?")
		b.refused(b.post("message-result", "key", "order-0001", "consumer", "nobody", "epoch", "0", "reason", "x"), http.StatusNotFound, "Nothing was changed")
		b.pages = b.Dashboard(readOnly)
		b.shows(b.get("message?key=order-0001"), "hidden. An operator who may make changes")
		b.refused(b.post("message-result", append(fields, "reason", "did it pay?")...), http.StatusForbidden, "read-only")
	}},
	{Name: "a look at a payload", Why: "it is hidden until somebody says why, and that is written down", Run: func(t *testing.T, db *testdb.DB) {
		b := one(t, db)
		assert.NotContains(t, b.get("message?key=order-0001").text, "At least")
		db.Do(t, `INSERT INTO millrace_dropped (at, consumer, message_id, topic, reason)
			SELECT 1, consumer, message_id, topic, topic FROM millrace_messages CROSS JOIN `+db.Numbers(1001))
		page := b.get("message?key=order-0001")
		b.shows(page, "At least 1,000 copies were dropped.")
		assert.NotContains(t, page.text, "customer", "the payload")
		shown := b.post("message-reveal", append(b.fields(page, "message-reveal"), "reason", "who is it?")...)
		b.shows(shown, "{\n  &#34;order&#34;: 1,\n  &#34;customer&#34;: &#34;c-1&#34;", "JSON")
		assert.Equal(t, 1, b.Audited("reveal", "who is it?"))
		assert.Empty(t, shown.Header.Get("ETag"))
		assert.Equal(t, "no-store", shown.Header.Get("Cache-Control"))
		b.shows(b.get("audit"), "reveal", "who is it?")
	}},
	{Name: "a group of failures", Why: "many are tried again in requests that end, each message once", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db, func(c *dashboard.Config) { c.Budget = 1 })
		b.Serve(consumer)
		var msgs []*message.Message
		for i := range 250 {
			msgs = append(msgs, stuck.Order(i, fmt.Sprintf("account %d has no owner", i)))
		}
		b.Put(consumer, append(msgs, stuck.Order(999, "no stock"))...)
		b.AwaitStuck(251)
		list := b.get("failures")
		b.shows(list, "account ? has no owner", "no stock")
		group := b.group("account")
		page := b.get("failure?group=" + group)
		b.shows(page, "250 messages fail the same way", "Retry 250 messages", "Discard 250 messages", "makes them due in", "order-0000")

		next := b.post("failure-retry", append(b.fields(page, "failure-retry"), "reason", "owners added")...)
		for _, done := range []string{"100 of 250", "200 of 250"} {
			b.shows(next, done, " a second, about ", "Continue")
			b.AwaitStuck(251) // they fail again, and are not taken again
			next = b.post("failure-retry", b.fields(next, "failure-retry")...)
		}
		assert.Contains(t, b.done(next).text, "250 messages will be handled again.")
		assert.Equal(t, 250, b.Audited("retry", "owners added"))
		assert.Equal(t, 1, b.Count(`SELECT COUNT(*) FROM millrace_audit`))
		b.shows(b.get("audit"), "250 messages", "of failure group "+group, `href="changed?entry=1"`, `href="audit.csv"`)
		changed := b.get("changed?entry=1&after=200")
		b.shows(changed, "retry of 250 messages by ada", "owners added", "order-0249", `href="changed?entry=1"`, `href="changed.csv?entry=1"`)
		b.refused(b.get("changed?entry=2"), http.StatusNotFound, "")
		file := b.get("audit.csv?operator=ada")
		assert.Equal(t, "text/csv; charset=utf-8", file.Header.Get("Content-Type"))
		assert.Equal(t, `attachment; filename="audit.csv"`, file.Header.Get("Content-Disposition"))
		assert.Regexp(t, `^id,at,by,action,consumer,epoch,key,messages,reason,detail\n1,[^,]+,ada,retry,billing,0,,250,owners added,`, file.text)
		assert.Equal(t, 251, strings.Count(b.get("changed.csv?entry=1").text, "\n"))
		b.refused(b.get("changed.csv?entry=2"), http.StatusNotFound, "")
		b.refused(b.get("audit.csv?since=yesterday"), http.StatusBadRequest, "no date and time")
		b.AwaitStuck(251)

		page = b.get("failure?group=" + b.group("no stock"))
		b.shows(page, "1 message fails the same way")
		b.shows(b.get("failures"), "no stock")
		b.shows(b.get(""), ">100&#43;<") // the first sample
		discarded := b.post("failure-discard", append(b.fields(page, "failure-discard"), "reason", "sold out")...)
		left, leave := context.WithCancel(t.Context())
		leave()
		for i := range 40 { // a browser that does not wait for the page
			page := []string{"/", "/failures"}[i%2]
			b.pages.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(left, http.MethodGet, stuck.Prefix+page, nil))
		}
		assert.NotContains(t, b.get("failures").text, "no stock")
		assert.NotContains(t, b.get("").text, ">100&#43;<")
		b.done(discarded)
		assert.Equal(t, 1, b.Audited("discard", "sold out"))
		b.AwaitStuck(250)
	}},
	{Name: "a group that grows before it is discarded", Why: "the button named fewer messages, and a discard cannot be undone", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Put(consumer, stuck.Order(0, ""), stuck.Order(1, ""), stuck.Order(2, ""))
		db.Do(t, `UPDATE millrace_messages SET status = CASE WHEN id = 1 THEN 6 ELSE 4 END, last_error = ?, error_group = 17`, []byte("no bank"))
		page := b.get("failure?group=17")
		b.shows(page, "Discard 1 message…")
		fields := append(b.fields(page, "failure-discard"), "reason", "it closed")
		db.Do(t, `UPDATE millrace_messages SET status = 6 WHERE id = 2`)
		b.refused(b.post("failure-discard", fields...), http.StatusConflict, "Meanwhile 2 messages of the group wait for a decision, not 1")
		assert.Equal(t, 3, b.Count(`SELECT COUNT(*) FROM millrace_messages`))
		db.Do(t, `UPDATE millrace_messages SET status = 4 WHERE id = 2`)
		b.done(b.post("failure-discard", fields...))
		assert.Equal(t, 2, b.Count(`SELECT COUNT(*) FROM millrace_messages`))
	}},
	{Name: "a group of which some cannot be sent back", Why: "the end says so, whichever request it was in", Run: func(t *testing.T, db *testdb.DB) {
		sent := &sink{}
		b := newBed(t, db, func(c *dashboard.Config) { c.Budget, c.Redeliver = 1, sent })
		b.Put(consumer, stuck.Order(0, ""), stuck.Order(1, ""), stuck.Order(2, ""), stuck.Order(3, ""))
		db.Do(t, `UPDATE millrace_messages SET status = 6, last_error = ?, error_group = 17`, []byte("no bank"))
		db.Do(t, `UPDATE millrace_messages SET topic = ? WHERE id = 1`, []byte{})
		next := b.post("failure-retry", append(b.fields(b.get("failure?group=17"), "failure-retry"), "reason", "it is open")...)
		for _, done := range []string{"0 of 4", "1 of 4", "2 of 4"} { // the budget is looked at behind each message
			b.shows(next, done, "its topic is not known")
			next = b.post("failure-retry", b.fields(next, "failure-retry")...)
		}
		b.refused(next, http.StatusInternalServerError, "3 messages done, others not: ")
		assert.Contains(t, next.text, "its topic is not known")
		assert.Len(t, sent.topics, 3)
	}},
	{Name: "a group of which a part takes all the time there is", Why: "what was done is done, so the page shows it and goes on", Run: func(t *testing.T, db *testdb.DB) {
		sent := &sink{}
		b := newBed(t, db, func(c *dashboard.Config) { c.Budget, c.Redeliver = time.Hour, sent })
		b.Put(consumer, stuck.Order(0, ""), stuck.Order(1, ""), stuck.Order(2, ""))
		db.Do(t, `UPDATE millrace_messages SET status = 6, last_error = ?, error_group = 17`, []byte("no bank"))
		fields := append(b.fields(b.get("failure?group=17"), "failure-retry"), "reason", "it is open")
		for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
			ctx := &runOut{Context: t.Context(), done: make(chan struct{})}
			sent.sent = func() { ctx.end(end) }
			next := b.send(stuck.Form("failure-retry", fields...).WithContext(ctx))
			if len(sent.topics) == 2 {
				b.refused(next, http.StatusInternalServerError, "2 messages done, others not: ")
				break
			}
			b.shows(next, "1 of 3", "Continue")
			fields = b.fields(next, "failure-retry")
		}
		assert.Len(t, sent.topics, 2)
	}},
	{Name: "pause and resume", Why: "an operator stops what is stored from being delivered", Run: func(t *testing.T, db *testdb.DB) {
		b := one(t, db)
		page := b.get("consumers")
		b.shows(page, "delivers", "7 days", "uuid", "not declared")
		b.shows(b.done(b.post("consumers-pause", append(b.fields(page, "consumers-pause"), "reason", "the bank is down")...)), "paused", "Resume")
		known, err := admin.New(b.Store).Consumers(t.Context())
		require.NoError(t, err)
		assert.True(t, known[0].Paused)
		b.done(b.post("consumers-resume", append(b.fields(b.get("consumers"), "consumers-resume"), "reason", "it is back")...))
		known, err = admin.New(b.Store).Consumers(t.Context())
		require.NoError(t, err)
		assert.False(t, known[0].Paused)
		assert.Equal(t, 1, b.Audited("pause", "the bank is down"))
	}},
	{Name: "where no queue serves", Why: "a retry needs a publisher, and the page says so", Run: func(t *testing.T, db *testdb.DB) {
		sent := &sink{}
		b := newBed(t, db)
		b.Put(consumer, stuck.Order(1, ""))
		id := strconv.FormatInt(b.only().ID, 10)
		b.refused(b.post("message-discard", "id", id, "key", "order-0001", "reason", "x"), http.StatusConflict, "it is RECEIVED, and only PARKED")
		db.Do(t, `UPDATE millrace_messages SET status = 6`)
		b.shows(b.get("message?key=order-0001"), "cannot be retried from here")
		b.refused(b.post("message-retry", "id", id, "key", "order-0001", "reason", "try"), http.StatusConflict, "no queue delivers")
		assert.Zero(t, b.Audited("retry", "try"))
		b.pages = b.Dashboard(func(c *dashboard.Config) { c.Redeliver = sent })
		page := b.get("message?key=order-0001")
		b.shows(page, "sent back to its topic")
		b.done(b.post("message-retry", append(b.fields(page, "message-retry"), "reason", "try")...))
		assert.Equal(t, []string{"orders"}, sent.topics)
	}},
	{Name: "a message parked in the outbox", Why: "relays try it again, or it is never sent", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		require.NoError(t, b.Outbox.Publish("invoices", stuck.Order(1, ""), stuck.Order(2, "")))
		db.Do(t, `UPDATE millrace_outbox SET status = 3, last_error = 'no such exchange'`)
		page := b.get("outbox")
		b.shows(page, "order-0001", "order-0002", "no such exchange", "invoices")
		b.done(b.post("outbox-retry", append(b.fields(page, "outbox-retry"), "reason", "declared")...))
		b.done(b.post("outbox-discard", append(b.fields(b.get("outbox"), "outbox-discard"), "reason", "nobody wants it")...))
		b.shows(b.get("outbox"), "No message was given up")
		assert.Equal(t, 1, b.Audited("outbox retry", "declared"))
		assert.Equal(t, 1, b.Audited("outbox discard", "nobody wants it"))
	}},
}

// TestAnActionHasItsBudget, also where that is longer than a page may wait for the database.
func TestAnActionHasItsBudget(t *testing.T) {
	var left time.Duration
	b := newBed(t, testdb.On(t, "sqlite"), func(c *dashboard.Config) {
		c.Budget = time.Hour
		c.Operator = func(r *http.Request) string {
			until, _ := r.Context().Deadline()
			left = time.Until(until)
			return stuck.Operator
		}
	})
	b.refused(b.post("failure-retry", "reason", "x"), http.StatusBadRequest, "does not name the messages")
	assert.Greater(t, left, time.Hour)
	b.get("")
	assert.Less(t, left, time.Minute)
}

// group returns the group of the failures whose shape begins so.
func (b *bed) group(shape string) string {
	b.Helper()
	groups, err := admin.New(b.Store).FailureGroups(b.Context(), admin.Filter{})
	require.NoError(b, err)
	for _, g := range groups {
		if len(g.Shape) >= len(shape) && g.Shape[:len(shape)] == shape {
			return strconv.FormatInt(g.ErrorGroup, 10)
		}
	}
	b.Fatalf("no group begins with %q", shape)
	return ""
}

// sink notes to which topics was published.
type sink struct {
	topics []string
	sent   func() // called for each message, if any
}

func (s *sink) Publish(topic string, _ ...*message.Message) error {
	s.topics = append(s.topics, topic)
	if s.sent != nil {
		s.sent()
	}
	return nil
}

func (s *sink) Close() error { return nil }

// runOut is a context that ends when the test says so, and its children with it.
type runOut struct {
	context.Context //nolint:containedctx // it is one
	done            chan struct{}
	err             error
	after           []func()
}

func (e *runOut) Done() <-chan struct{} { return e.done }
func (e *runOut) Err() error            { return e.err }

func (e *runOut) AfterFunc(f func()) func() bool {
	e.after = append(e.after, f)
	return func() bool { return true }
}

func (e *runOut) end(err error) {
	e.err = err
	close(e.done)
	for _, f := range e.after {
		f()
	}
}

// A group's form names the messages that were there by the clock that dates them, which is the database's.
func TestAGroupEndsAtTheTimeOfTheDatabase(t *testing.T) {
	t.Parallel()
	inAnHour := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	sent, db := &sink{}, testdb.On(t, "mysql", testdb.Params("timestamp", inAnHour)) // a clock that stands still
	b := newBed(t, db, func(c *dashboard.Config) { c.Redeliver = sent })
	b.Put(consumer, stuck.Order(1, ""))
	db.Do(t, `UPDATE millrace_messages SET status = 6, last_error = ?, error_group = 17`, []byte("no bank"))
	page := b.get("failure?group=17")
	b.shows(page, "Retry 1 message")
	b.done(b.post("failure-retry", append(b.fields(page, "failure-retry"), "reason", "it is open")...))
	assert.Len(t, sent.topics, 1)
}
