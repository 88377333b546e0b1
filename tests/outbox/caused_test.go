package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestWhatAMessageCausedIsFound(t *testing.T) {
	testdb.Conformance(t, causedBodies)
}

var causedBodies = []testdb.Body{
	{
		Name: "what a handler stored", Run: causedByHandler,
		Why: "published and returned messages name the message that was handled, others name none",
	},
	{
		Name: "any key", Run: causedByAnyKey,
		Why: "a key that is not text must not keep the handler from publishing",
	},
	{
		Name: "among others", Run: causedAmongOthers,
		Why: "the time is found by the primary key, whatever rows are gone",
	},
}

// caused are the UUIDs of what a message of billing caused in the last minute.
func (o *office) caused(key string) []string {
	o.Helper()
	return o.causedAt(key, time.Now().Add(-time.Minute), time.Now().Add(time.Minute))
}

func (o *office) causedAt(key string, from, until time.Time) []string {
	o.Helper()
	entries, err := o.out.CausedBy(o.Context(), "billing", key, from, until)
	require.NoError(o, err)
	uuids := []string{}
	for _, e := range entries {
		uuids = append(uuids, e.UUID)
	}
	return uuids
}

func causedByHandler(t *testing.T, db *testdb.DB) {
	o := newOffice(t, db)
	s := o.serve(func(r *message.Router) {
		r.AddPlugin(o.store.Plugin())
		r.AddMiddleware(millrace.Inbox{Store: o.store, Outbox: o.out}.Middleware)
	})
	s.router.AddHandler("billing", "orders", s.source, "invoices", o.out,
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			require.NoError(t, err)
			require.NoError(t, o.put(outbox.WithTx(t.Context(), tx), "a stranger's"))
			require.NoError(t, o.put(msg.Context(), "a", "b"))
			return carried(msg.Context(), "returned"), nil
		})
	s.run()
	first, second := newOrder(), newOrder()
	s.deliver("orders", first)
	require.NoError(t, outbox.InTx(t.Context(), db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
		return o.put(ctx, "of InTx")
	}))
	assert.Equal(t, []string{"a", "b", "returned"}, o.caused(first.UUID))
	assert.Empty(t, o.caused(second.UUID))

	entries, err := o.out.CausedBy(t.Context(), "billing", first.UUID, time.Now(), time.Now())
	require.NoError(t, err)
	require.Len(t, entries, 3)
	assert.Equal(t, "invoices", entries[2].Topic)
	assert.Equal(t, outbox.Pending, entries[2].State)
	assert.WithinDuration(t, time.Now(), entries[2].StoredAt, time.Minute)
	assert.Zero(t, entries[2].SentAt)

	run := o.relay(func(c *outbox.RelayConfig) { c.Retention = time.Hour })
	rig.Eventually(o, "all are sent", func() bool { return o.kept() == 5 })
	require.NoError(t, run.stop())
	entries, err = o.out.CausedBy(t.Context(), "billing", first.UUID, time.Now(), time.Now())
	require.NoError(t, err)
	require.Len(t, entries, 3)
	assert.Equal(t, "SENT", entries[0].State.String())
	assert.WithinDuration(t, time.Now(), entries[0].SentAt, time.Minute)
}

func causedByAnyKey(t *testing.T, db *testdb.DB) {
	o := newOffice(t, db)
	h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
		return nil, o.put(msg.Context(), "of "+msg.Metadata.Get("n"))
	}, func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("k") })
	for n, key := range map[string]string{"1": "a/\x00\xff'b", "2": "ключ", "3": string(make([]byte, 500))} {
		msg := newOrder()
		msg.Metadata.Set("n", n)
		msg.Metadata.Set("k", key)
		_, err := h(msg)
		require.NoError(t, err)
	}
	assert.Equal(t, []string{"of 1"}, o.caused("a/\x00\xff'b"))
	assert.Equal(t, []string{"of 2"}, o.caused("ключ"))
}

func causedAmongOthers(t *testing.T, db *testdb.DB) {
	o := newOffice(t, db)
	const n = 300
	began := time.Now().Add(-n * time.Minute)
	for i := range n {
		db.Do(t, `INSERT INTO millrace_outbox (id, key_hash, created_at, topic, uuid, cause) VALUES (?, 1, ?, 'orders', ?, ?)`, 100+i*i, began.Add(time.Duration(i)*time.Minute).UnixMicro(), "row", "billing/x")
	}
	db.Do(t, `DELETE FROM millrace_outbox WHERE id > 10000 AND id < 20000`)
	at := func(minute int) time.Time { return began.Add(time.Duration(minute) * time.Minute) }
	assert.Len(t, o.causedAt("x", at(10), at(20)), 11)
	assert.Len(t, o.causedAt("x", at(0), at(0)), 1)
	assert.Len(t, o.causedAt("x", at(n-1), at(n-1)), 1)
	assert.Empty(t, o.causedAt("x", at(-10), at(-5)))
	assert.Empty(t, o.causedAt("x", at(n+5), at(n+10)))
	assert.Empty(t, o.causedAt("x", at(110), at(120)), "they are gone")
	assert.Empty(t, o.causedAt("y", at(10), at(20)))
	o.clear()
	assert.Empty(t, o.causedAt("x", at(10), at(20)), "the outbox is empty")
}

// kept counts what was sent and is kept.
func (o *office) kept() int {
	o.Helper()
	return o.db.Count(o, `SELECT COUNT(*) FROM millrace_outbox WHERE status = 4`)
}
