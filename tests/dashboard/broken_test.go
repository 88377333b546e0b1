package dashboard_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/health"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestARowThatCannotBeReadHidesNoOther: somebody changed a row by hand, and the pages are there to find it.
func TestARowThatCannotBeReadHidesNoOther(t *testing.T) {
	columns := []string{
		"status", "attempts", "topic", "partition_no", "offset_no", "order_key", "event_type", "event_version", "uuid", "metadata", "payload",
		"payload_hash", "received_at", "due_at", "lease_token", "last_error", "error_group", "error_code", "reason", "reason_code", "original",
		"aggregate", "version", "payload_form", "payload_ref", "message_id",
	}
	values := []any{[]byte("\x00\xff\x80"), "text", int64(math.MaxInt64), int64(math.MinInt64), 99, -1, 1.5, []byte{}}
	pages := []string{"inbox", "inbox?status=parked", "failures", "failure?group=17", "", "message?key=order-0002"}
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b, tried := newBed(t, db), time.Now().YearDay()
		b.Put(consumer, stuck.Order(1, ""), stuck.Order(2, ""))
		db.Do(t, `UPDATE millrace_messages SET status = 6, last_error = ?, error_group = 17`, []byte("no bank"))
		for _, column := range testdb.Sample(t, 4, columns) {
			for _, value := range values {
				var before any
				require.NoError(t, db.QueryRowx(`SELECT `+column+` FROM millrace_messages WHERE id = 1`).Scan(&before))
				if _, err := db.Exec(db.Rebind(`UPDATE millrace_messages SET `+column+` = ? WHERE id = 1`), value); err != nil {
					continue // the database does not accept it
				}
				shown := pages
				if !testdb.Long() { // one of them for each value
					shown = pages[tried%len(pages):][:1]
				}
				tried++
				for _, page := range shown {
					a := b.get(page)
					assert.Equal(t, http.StatusOK, a.StatusCode, "%s with %s = %v", page, column, value)
				}
				_, err := admin.New(b.Store).FailureGroups(t.Context(), admin.Filter{})
				assert.NoError(t, err, "groups with %s = %v", column, value)
				found, err := admin.New(b.Store).Find(t.Context(), admin.Filter{}, 0, 10)
				if assert.NoError(t, err, "%s = %v", column, value) {
					assert.NotEmpty(t, found, "%s = %v", column, value)
				}
				db.Do(t, `UPDATE millrace_messages SET `+column+` = ? WHERE id = 1`, before)
			}
		}
	})
}

// TestAHeldMessageHasNoNextAttempt: at the end of its time it is parked.
func TestAHeldMessageHasNoNextAttempt(t *testing.T) {
	b := newBed(t, testdb.On(t, "sqlite"))
	b.Put(consumer, stuck.Order(1, ""))
	b.DB.Do(t, `UPDATE millrace_messages SET status = ?, due_at = ?`, admin.Held, time.Now().Add(2*time.Hour+time.Minute).UnixMicro())
	page := b.get("message?key=order-0001")
	b.shows(page, "Parked unless its predecessor comes by")
	assert.NotContains(t, page.text, "Next attempt")
	b.shows(b.get("inbox"), "parked in 2 h")
}

// TestAnOutcomeThatCannotBeReadHidesNoOther is about what a handler returned and the broker may lack.
func TestAnOutcomeThatCannotBeReadHidesNoOther(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer)
		b.Put(consumer, stuck.Order(1, ""), stuck.Order(2, ""))
		b.Await(2, `SELECT COUNT(*) FROM millrace_claims WHERE result = 1`)
		whole := msgcode.Encode([]*message.Message{message.NewMessage("receipt-2", nil)})
		for key, messages := range map[string][]byte{"order-0001": {9}, "order-0002": whole} {
			db.Do(t, `INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages) VALUES (?, ?, 1, ?, ?)`,
				db.Count(t, `SELECT id FROM millrace_consumers`), keycode.Encode(key), []byte("receipts"), messages)
		}
		b.shows(b.get("outbox"), "order-0002", "Some cannot be read")
		b.shows(b.get("message?key=order-0001"), "cannot be read, so nobody publishes it")
		b.shows(b.get("message?key=order-0002"), "receipt-2")
	})
}

// keyless is a codec whose key service is out.
type keyless struct{ opened atomic.Int32 }

func (*keyless) Seal(_ context.Context, _ payload.Info, plain []byte) ([]byte, error) {
	return plain, nil
}

func (k *keyless) Open(context.Context, payload.Info, []byte) ([]byte, error) {
	k.opened.Add(1)
	return nil, fmt.Errorf("the key service is out: %w", inbox.ErrUnavailable)
}

// TestALookAtOutcomesOpensNoPayload: nobody has asked for one, and a key service that is out is no database that is out.
func TestALookAtOutcomesOpensNoPayload(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		codec := &keyless{}
		s := stuck.New(t, db, inbox.Config{Payloads: codec})
		b := &bed{s, s.Dashboard()}
		b.Put(consumer, stuck.Order(1, ""))
		db.Do(t, `INSERT INTO millrace_claims (consumer, message_id, result, processed_at, payload_hash, token) VALUES (?, ?, 1, 1, 0, 0)`,
			db.Count(t, `SELECT id FROM millrace_consumers`), keycode.Encode("order-0002"))
		sealed := append([]byte{0xa5}, msgcode.Encode([]*message.Message{message.NewMessage("receipt-2", []byte("{}"))})...)
		db.Do(t, `INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages) VALUES (?, ?, 1, ?, ?)`,
			db.Count(t, `SELECT id FROM millrace_consumers`), keycode.Encode("order-0002"), []byte("receipts"), sealed)
		b.shows(b.get(""), "what a handler returned may not be published", "order-0002")
		page := b.get("outbox")
		b.shows(page, "order-0002", `<td class="n">1</td>`)
		assert.NotContains(t, page.text, "Some cannot be read")
		checks, err := health.NewHandler(health.Config{Store: b.Store})
		require.NoError(t, err)
		w := httptest.NewRecorder()
		checks.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		assert.Equal(t, http.StatusOK, w.Code, w.Body)
		assert.Zero(t, codec.opened.Load())
		b.shows(b.choose(page, "outcomes-redispatch", "the broker was down"), "It cannot be read", "the key service is out")
	})
}
