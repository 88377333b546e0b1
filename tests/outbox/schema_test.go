package outbox_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestTheOutboxMayHaveASchema: Migrate makes its tables there and nowhere else, and says what is missing.
func TestTheOutboxMayHaveASchema(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	out := rig.NewOutbox(t, db.DB, outbox.Config{Schema: "messaging", Standalone: true})
	publish := func() error { return out.Publish("orders", message.NewMessage(watermill.NewUUID(), nil)) }
	require.EqualError(t, out.Migrate(t.Context()),
		`outbox: migrate: there is no schema "messaging": create it, or leave Config.Schema empty`)
	err := publish()
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
	assert.ErrorContains(t, err, "messaging.millrace_outbox")

	db.Do(t, `CREATE SCHEMA messaging`)
	for range 2 {
		require.NoError(t, out.Migrate(t.Context()))
	}
	require.NoError(t, publish())
	broker := &rig.Publisher{}
	relay, err := outbox.NewRelay(db.DB, broker, outbox.RelayConfig{Schema: "messaging"})
	require.NoError(t, err)
	n, err := relay.RelayBatch(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Len(t, broker.Messages(), 1)
	assert.Zero(t, db.Count(t, `SELECT COUNT(*) FROM pg_tables WHERE tablename LIKE 'millrace%' AND schemaname <> 'messaging'`))
}
