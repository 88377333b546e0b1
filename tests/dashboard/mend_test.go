package dashboard_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestOperatorsMendWhatTheyChoose(t *testing.T) {
	testdb.Conformance(t, mendBodies)
}

var mendBodies = []testdb.Body{
	{Name: "a version that never comes", Why: "an aggregate goes on without it, if nothing else is missing by then", Run: func(t *testing.T, db *testdb.DB) {
		const aggregate = "a/b\r\n%2F ü"
		b := newBed(t, db)
		b.Serve(consumer, millrace.VersionGate{}.Middleware)
		put := func(versions ...int64) {
			for _, version := range versions {
				msg := stuck.Order(int(version), "")
				outbox.Stamp(msg, aggregate, version)
				b.Put(consumer, msg)
			}
		}
		put(1, 2, 5, 6)
		b.Await(2, `SELECT COUNT(*) FROM millrace_messages WHERE status = 7`)
		b.Await(2, `SELECT COUNT(*) FROM millrace_messages`)
		b.Await(2, `SELECT version FROM millrace_versions`)
		asked := b.choose(b.get("waiting"), "gaps-skip", "the producer lost them")
		b.shows(asked, "Skip 1 gap?", "it is at version 2; versions 3-4 are skipped, and then version 5 is handled")
		put(3)
		b.Await(3, `SELECT version FROM millrace_versions`)
		b.shows(b.confirm(asked, "gaps-skip"), "0 of 1 gap done", "are not what it misses now")
		assert.Zero(t, b.Count(`SELECT COUNT(*) FROM millrace_audit`))

		page := b.get("aggregate?consumer=billing&aggregate=" + url.QueryEscape(aggregate))
		b.shows(page, "<dt>Applied version</dt><dd>3</dd>", "version 4 is missing")
		b.shows(b.get("message?key=order-0005"), `href="aggregate?aggregate=a%2Fb%0D%0A%252F&#43;%C3%BC&amp;consumer=billing&amp;epoch=0"`)
		next := b.done(b.post("gaps-skip", append(b.fields(page, "gaps-skip"), "reason", "the producer lost it")...))
		b.shows(next, "1 gap skipped")
		assert.Equal(t, 1, b.Audited("set version", "the producer lost it"))
		b.Await(0, `SELECT COUNT(*) FROM millrace_messages`)
		b.Await(6, `SELECT version FROM millrace_versions`)
		b.shows(b.choose(answer{text: `action="gaps-skip" name="chosen" value="billing/0/a%2Fb%0D%0A%252F%20%C3%BC" form=`}, "gaps-skip", "again"),
			"Nothing can be done about these", "It is at version 6, and waits for nothing")

		page = b.get("aggregate?consumer=billing&aggregate=" + url.QueryEscape(aggregate))
		set := append(b.fields(page, "aggregate-set"), "reason", "from the snapshot", "version")
		b.refused(b.post("aggregate-set", append(set, "5")...), http.StatusConflict, "It is at version 6, and cannot go back to 5")
		asked = b.post("aggregate-set", append(set, "9")...)
		b.shows(asked, "to version 9?", "it is at version 6", "versions 7-9 are skipped")
		assert.Equal(t, 6, b.Count(`SELECT version FROM millrace_versions`))
		b.shows(b.done(b.confirm(asked, "aggregate-set")), "<dt>Applied version</dt><dd>9</dd>")
		assert.Equal(t, 1, b.Audited("set version", "from the snapshot"))

		page = b.get("aggregate?consumer=billing&aggregate=new")
		b.shows(page, "The consumer has seen nothing of it")
		asked = b.post("aggregate-set", append(b.fields(page, "aggregate-set"), "reason", "imported", "version", "4")...)
		b.shows(asked, "It would begin at version 4")
		b.done(b.confirm(asked, "aggregate-set"))
		b.refused(b.confirm(asked, "aggregate-set"), http.StatusConflict, "Meanwhile")
		assert.Equal(t, 1, b.Audited("set version", "imported"))
		assert.Equal(t, 2, b.Count(`SELECT COUNT(*) FROM millrace_versions`), "and no other was made up")

		const epoch = "2147483648"
		for action, pair := range map[string][2]string{
			"gaps-skip":           {"chosen", "billing/" + epoch + "/new"},
			"outcomes-redispatch": {"chosen", "billing/" + epoch + "/order-0001"},
			"consumers-pause":     {"epoch", epoch},
		} {
			b.refused(b.post(action, "consumer", consumer, "reason", "x", pair[0], pair[1]), http.StatusBadRequest, "This is not a valid epoch")
		}
	}},
	{Name: "what a handler returned", Why: "it goes into the outbox once, as it was", Run: func(t *testing.T, db *testdb.DB) {
		const odd = "a/b%2F\r\n'"
		b := newBed(t, db)
		b.Serve(consumer)
		keys := []string{"order-0001", odd, "settled", "fresh", "torn"}
		for _, key := range keys {
			msg := stuck.Order(1, "")
			msg.UUID = key
			b.Put(consumer, msg)
		}
		b.Await(5, `SELECT COUNT(*) FROM millrace_claims WHERE result = 1`)
		for _, key := range keys {
			at, messages := int64(1), msgcode.Encode([]*message.Message{message.NewMessage("receipt-of-"+key, []byte("4711"))})
			switch key {
			case "fresh":
				at = time.Now().Add(time.Minute).UnixMicro() // long enough
			case "torn":
				messages = []byte{9}
			}
			db.Do(t, `INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages) VALUES (?, ?, ?, ?, ?)`,
				db.Count(t, `SELECT id FROM millrace_consumers`), keycode.Encode(key), at, []byte("receipts"), messages)
		}
		boxes := b.boxes(b.get("outbox"))
		require.Len(t, boxes, 3, "those that may need it")
		asked := b.choose(b.get("outbox"), "outcomes-redispatch", "it was down", append(boxes, "billing/0/fresh", "billing/0/torn", "billing/0/none")...)
		b.shows(asked, "Redispatch 3 outcomes?", "billing: 1 message to receipts", "No relay runs now", "stored less than a minute ago", "It cannot be read", "It is settled")
		db.Do(t, `DELETE FROM millrace_outcomes WHERE message_id = ?`, keycode.Encode("settled"))
		b.shows(b.confirm(asked, "outcomes-redispatch"), "2 of 3 outcomes done", "It is settled")
		for _, key := range []string{"order-0001", odd} {
			assert.Equal(t, 1, b.Count(`SELECT COUNT(*) FROM millrace_outbox WHERE topic = ? AND uuid = ?`, "receipts", "receipt-of-"+key))
		}
		assert.Equal(t, 2, b.Audited("redispatch", "it was down"))
		assert.Equal(t, 2, b.Count(`SELECT COUNT(*) FROM millrace_outcomes`))
		page := b.get("message?key=fresh")
		b.shows(b.post("outcomes-redispatch", append(b.fields(page, "outcomes-redispatch"), "reason", "now")...), "Nothing can be done about these")
		b.pages = b.Dashboard(func(c *dashboard.Config) { c.Outbox = nil })
		b.refused(b.confirm(asked, "outcomes-redispatch"), http.StatusNotFound, "There is no outbox here")
	}},
	{Name: "several messages", Why: "those and no others, and what could not be done is told of each", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer)
		for i := range 6 {
			b.Put(consumer, stuck.Order(i, "no owner"))
		}
		b.AwaitStuck(6)
		b.Mended.Store(true)
		boxes := b.boxes(b.get("inbox"))
		require.Len(t, boxes, 6)
		foreign, err := inbox.NewStore(db.DB, inbox.Config{Namespace: "another"})
		require.NoError(t, err)
		queue, err := foreign.Queue(inbox.QueueConfig{Consumer: consumer})
		require.NoError(t, err)
		require.NoError(t, queue.Put(t.Context(), "orders", stuck.Order(77, "")))
		theirs := strconv.Itoa(db.Count(t, `SELECT MAX(id) FROM millrace_messages`))
		db.Do(t, `UPDATE millrace_messages SET status = 6 WHERE id = `+theirs)

		asked := b.choose(b.get("inbox"), "messages-retry", "owner added", boxes[0], boxes[1], boxes[2], boxes[1], theirs)
		b.shows(asked, "Retry 3 messages?", "order-0000", "order-0001", "order-0002", "no owner", "row "+theirs, "It is not here any more")
		for _, other := range []string{"order-0003", "order-0077"} {
			assert.NotContains(t, asked.text, other)
		}
		second, err := strconv.ParseInt(boxes[1], 10, 64)
		require.NoError(t, err)
		require.NoError(t, admin.New(b.Store).Discard(t.Context(), second, admin.Operator{Name: "grace", Reason: "x"}))
		b.shows(b.confirm(asked, "messages-retry"), "2 of 3 messages done", `<span class="good">done</span>`, "It is not here any more")
		b.Await(3, `SELECT COUNT(*) FROM millrace_messages WHERE id <> `+theirs)
		assert.Equal(t, 2, b.Audited("retry", "owner added"))

		listed := b.get("inbox?sort=-stored")
		db.Do(t, `UPDATE millrace_messages SET status = 7, due_at = ? WHERE id = `+boxes[3], time.Now().Add(time.Hour).UnixMicro())
		asked = b.choose(listed, "messages-discard", "test orders")
		b.shows(asked, "Discard 2 messages?", "It cannot be discarded: it is held")
		next := b.done(b.confirm(asked, "messages-discard"))
		b.shows(next, "2 messages were discarded", "order-0003")
		assert.Equal(t, 2, b.Audited("discard", "test orders"))
		assert.Equal(t, 1, b.Count(`SELECT COUNT(*) FROM millrace_messages WHERE id = `+theirs+` AND status = 6`))
	}},
	{Name: "several messages of the outbox", Why: "the same", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		require.NoError(t, b.Outbox.Publish("invoices", stuck.Order(1, ""), stuck.Order(2, ""), stuck.Order(3, ""), stuck.Order(4, "")))
		db.Do(t, `UPDATE millrace_outbox SET status = 3, last_error = 'no such exchange' WHERE uuid <> 'order-0004'`)
		boxes := b.boxes(b.get("outbox"))
		require.Len(t, boxes, 3)
		asked := b.choose(b.get("outbox"), "parked-retry", "declared", boxes[0], boxes[1])
		b.shows(asked, "Retry 2 messages?", "order-0001", "invoices: no such exchange")
		b.shows(b.done(b.confirm(asked, "parked-retry")), "Relays will try to send 2 messages again.")
		assert.Equal(t, 2, b.Audited("outbox retry", "declared"))
		b.shows(b.confirm(asked, "parked-retry"), "0 of 2 messages done", "only PARKED messages")
		b.shows(b.done(b.confirm(b.choose(b.get("outbox"), "parked-discard", "nobody wants it"), "parked-discard")), "1 message", "No message was given up")
		assert.Equal(t, 1, b.Audited("outbox discard", "nobody wants it"))
		assert.Equal(t, 3, b.Count(`SELECT COUNT(*) FROM millrace_outbox`))
	}},
	{Name: "a payload", Why: "it is replaced where the Store allows that, encrypted if it was, and nothing shows it", Run: func(t *testing.T, db *testdb.DB) {
		b := one(t, db)
		page := b.get("message?key=order-0001")
		assert.NotContains(t, page.text, "message-replace")
		id := strconv.FormatInt(b.only().ID, 10)
		fields := []string{"id", id, "key", "order-0001", "reason", "a typo", "payload"}
		b.refused(b.post("message-replace", append(fields, "{}")...), http.StatusForbidden, "AllowPayloadChange")

		codec, err := payload.NewAESGCM(payload.KeyRing{Current: "one", Keys: map[string][]byte{"one": []byte("sixteen bytes ok")}})
		require.NoError(t, err)
		sealing, err := inbox.NewStore(db.DB, inbox.Config{AllowPayloadChange: true, Payloads: codec})
		require.NoError(t, err)
		plain, err := inbox.NewStore(db.DB, inbox.Config{AllowPayloadChange: true})
		require.NoError(t, err)
		of := func(store *inbox.Store) http.Handler {
			h, err := dashboard.New(store, dashboard.Config{Prefix: stuck.Prefix, Operator: func(*http.Request) string { return stuck.Operator }, Logger: b.Log})
			require.NoError(t, err)
			return h
		}
		b.pages = of(plain)
		page = b.get("message?key=order-0001")
		assert.NotContains(t, page.text, "customer")
		shown := b.post("message-reveal", append(b.fields(page, "message-reveal"), "reason", "which?")...)
		b.shows(shown, "autocomplete=\"off\">\n{&#34;order&#34;:1,&#34;customer&#34;:&#34;c-1&#34;")
		next := b.done(b.post("message-replace", append(append(b.fields(shown, "message-replace"), "reason", "a typo", "payload"), "{\r\n\"order\": 7}\r\n")...))
		assert.Contains(t, next.text, "The payload was replaced.")
		assert.NotContains(t, next.text, "&#34;order&#34;: 7")
		assert.Equal(t, "{\n\"order\": 7}\n", string(b.only().Payload))
		assert.Equal(t, 1, b.Audited("replace payload", "a typo"))
		for text, want := range map[string]struct {
			status int
			why    string
		}{
			"{\n\"order\": 7}\n":           {http.StatusConflict, "it has that payload"},
			"":                             {http.StatusUnprocessableEntity, "The new payload is empty"},
			strings.Repeat("x", 128<<10+1): {http.StatusRequestEntityTooLarge, "too large for a form"},
		} {
			b.refused(b.post("message-replace", append(fields, text)...), want.status, want.why)
		}
		b.done(b.post("message-replace", append(fields, strings.Repeat("\r\n", 128<<10))...))
		b.pages = of(sealing)
		b.done(b.post("message-replace", append(fields, "secret-4711")...))
		assert.Zero(t, b.Count(`SELECT COUNT(*) FROM millrace_messages WHERE payload = ?`, []byte("secret-4711")))
		m, err := admin.New(sealing).Find(t.Context(), admin.Filter{}, 0, 1)
		require.NoError(t, err)
		assert.Equal(t, "secret-4711", string(m[0].Payload))
		b.pages = of(plain)
		b.refused(b.post("message-replace", append(fields, "as it is")...), http.StatusConflict, "its payload is encrypted")
		db.Do(t, `UPDATE millrace_messages SET status = 1`)
		b.refused(b.post("message-replace", append(fields, "too late")...), http.StatusConflict, "it is RECEIVED")
		assert.Equal(t, 3, b.Audited("replace payload", "a typo"))
		for _, line := range b.Log.Logs() {
			assert.NotContains(t, line, "4711")
		}
	}},
	{Name: "lists in the order of a column", Why: "the worst first, or the oldest", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer)
		b.Serve("shipping")
		b.Put(consumer, stuck.Order(1, "no owner"))
		b.Put("shipping", stuck.Order(1, "no stock"), stuck.Order(2, "no stock"))
		b.AwaitStuck(3)
		db.Do(t, `UPDATE millrace_messages SET received_at = received_at + 5000 WHERE consumer = (SELECT id FROM millrace_consumers WHERE name = ?)`,
			[]byte("shipping")) // SQLite's clock has whole milliseconds
		for page, first := range map[string][2]string{
			"failures":               {"no stock", "no owner"},
			"failures?sort=messages": {"no owner", "no stock"},
			"failures?sort=first":    {"no owner", "no stock"},
			"failures?sort=-last":    {"no stock", "no owner"},
			"":                       {`consumer=billing">billing`, `consumer=shipping">shipping`},
			"?sort=-stuck":           {`consumer=shipping">shipping`, `consumer=billing">billing`},
			"?sort=stuck":            {`consumer=billing">billing`, `consumer=shipping">shipping`},
		} {
			a := b.get(page)
			b.shows(a)
			list := a.text[strings.LastIndex(a.text, "<tbody>"):]
			assert.Less(t, strings.Index(list, first[0]), strings.Index(list, first[1]), page)
		}
		b.shows(b.get("failures"), `aria-sort="descending"><a href="failures?sort=messages">`, `<a href="failures?sort=first">`, `<a href="failures?sort=-last">`)
		b.shows(b.get("inbox?sort=-stored&consumer=billing"), `aria-sort="descending"><a href="inbox?consumer=billing&amp;sort=stored">Stored`,
			`<input type="hidden" name="sort" value="-stored">`)
	}},
}

// ending is a publisher that takes one message, and then the database goes.
type ending struct {
	sink
	db *testdb.DB
}

func (e *ending) Publish(topic string, msgs ...*message.Message) error {
	_ = e.db.Close()
	return e.sink.Publish(topic, msgs...)
}

// TestNothingIsTriedOnceTheDatabaseIsOut: the operator is told which were done.
func TestNothingIsTriedOnceTheDatabaseIsOut(t *testing.T) {
	b := newBed(t, testdb.On(t, "sqlite"))
	b.Put(consumer, stuck.Order(1, ""), stuck.Order(2, ""), stuck.Order(3, ""))
	b.DB.Do(t, `UPDATE millrace_messages SET status = 6`)
	last := &ending{db: b.DB}
	b.pages = b.Dashboard(func(c *dashboard.Config) { c.Redeliver = last })
	asked := b.choose(b.get("inbox"), "messages-retry", "because")
	b.shows(asked, "It is sent back to its topic.")
	b.shows(b.confirm(asked, "messages-retry"), "1 of 3 messages done", "It was not tried")
	assert.Len(t, last.topics, 1)
}
