package dashboard_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestWhatASlowHandlerPublishedIsShown: a claim has the time at which the handler began, and
// what it stores comes after.
func TestWhatASlowHandlerPublishedIsShown(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer)
		b.Put(consumer, stuck.Order(1, ""))
		b.Await(1, `SELECT COUNT(*) FROM millrace_claims WHERE result = 1`)
		db.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - ?`, (time.Minute).Microseconds())
		b.shows(b.get("message?key=order-0001"), "Published by its handlers", "invoice-of-order-0001")
		db.Do(t, `UPDATE millrace_claims SET result = 3`)
		superseded := b.get("message?key=order-0001")
		b.shows(superseded, `<span class="pill">superseded</span>`, "superseded by a newer epoch")
		assert.NotContains(t, superseded.text, "Published by its handlers", "no handler ran in this epoch")
	})
}

// TestPayloadsOfTheOutboxAreNotRead: the page shows none, and they may be large.
func TestPayloadsOfTheOutboxAreNotRead(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		require.NoError(t, b.Outbox.Publish("invoices", stuck.Order(1, "")))
		for _, query := range []string{`UPDATE millrace_outbox SET status = 3`, `ALTER TABLE millrace_outbox DROP COLUMN payload`} {
			db.Do(t, query)
		}
		b.shows(b.get("outbox"), "order-0001")
	})
}

func TestAnOutageOfTheBrokerIsShown(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		db.Do(t, `INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 1, 1, 1)`)
		db.Do(t, `INSERT INTO millrace_outbox_shards (generation, shard, owner) VALUES (1, 0, 7)`)
		db.Do(t, `INSERT INTO millrace_outbox_relays (token, name, started_at, until, broker_error, broker_out_since) VALUES (7, 'shop-1', 1, ?, ?, 1)`,
			time.Now().Add(time.Hour).UnixMicro(), "connection refused")
		b.shows(b.get(""), "the broker is out for relay shop-1: connection refused")
		b.shows(b.get("outbox"), "broker out", "Relay shop-1 has got nothing through to the broker since", "connection refused")
	})
}
