package outbox_test

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
)

// relayTo starts a relay to another broker than the post's own.
func (p *post) relayTo(b message.Publisher, change ...func(*outbox.RelayConfig)) *running {
	p.Helper()
	relay := p.newRelay(b, change...)
	return start(p.T, relay)
}

// newRelay makes a relay with short pauses.
func (p *post) newRelay(b message.Publisher, change ...func(*outbox.RelayConfig)) *outbox.Relay {
	p.Helper()
	config := outbox.RelayConfig{
		Logger: p.log, MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
		Poll: 50 * time.Millisecond, Lease: 10 * time.Second, MaxAttempts: outbox.Unlimited,
	}
	for _, c := range change {
		c(&config)
	}
	relay, err := outbox.NewRelay(p.db.DB, b, config)
	require.NoError(p, err)
	return relay
}

// store commits messages in one transaction.
func (p *post) store(topic string, msgs ...*message.Message) []string {
	p.Helper()
	err := outbox.InTx(p.Context(), p.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
		return p.publishIn(ctx, topic, msgs)
	})
	require.NoError(p, err)
	return uuids(msgs)
}

// storedRow is what a row says of a message.
type storedRow struct {
	ID        int64   `db:"id"`
	UUID      string  `db:"uuid"`
	Topic     string  `db:"topic"`
	Status    int     `db:"status"`
	Attempts  int     `db:"attempts"`
	LastError *string `db:"last_error"`
	SentAt    *int64  `db:"sent_at"`
	Blocked   *int64  `db:"blocked_key"`
}

// table reads all rows, in the order of their storing.
func (p *post) table() []storedRow {
	p.Helper()
	var rows []storedRow
	err := p.db.SelectContext(p.Context(), &rows,
		`SELECT id, uuid, topic, status, attempts, last_error, sent_at, blocked_key FROM millrace_outbox ORDER BY id`)
	if err != nil {
		p.Fatal(err)
	}
	return rows
}

// row reads the row of one message; nil if it is gone.
func (p *post) row(uuid string) *storedRow {
	p.Helper()
	rows := p.table()
	i := slices.IndexFunc(rows, func(r storedRow) bool { return r.UUID == uuid })
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// Statuses of a row.
const (
	rowPending = 0
	rowRetry   = 1
	rowHeld    = 2
	rowParked  = 3
	rowSent    = 4
)

// awaitStatus waits for a message to have a status.
func (p *post) awaitStatus(uuid string, status int) storedRow {
	p.Helper()
	var found storedRow
	rig.Eventually(p, "the status of a message", func() bool {
		r := p.row(uuid)
		if r != nil {
			found = *r
		}
		return r != nil && r.Status == status
	})
	return found
}
