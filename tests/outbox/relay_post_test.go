package outbox_test

import (
	"context"
	"slices"
	"sync"
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
	return start(p.T, p.newRelay(b, change...))
}

func (p *post) newRelay(b message.Publisher, change ...func(*outbox.RelayConfig)) *outbox.Relay {
	p.Helper()
	return p.relayOn(p.db.DB, b, change...)
}

// relayOn makes a relay with short pauses.
func (p *post) relayOn(pool *sqlx.DB, b message.Publisher, change ...func(*outbox.RelayConfig)) *outbox.Relay {
	p.Helper()
	config := outbox.RelayConfig{
		Logger: p.log, MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
		Poll: 50 * time.Millisecond, Lease: time.Minute, MaxAttempts: outbox.Unlimited,
	}
	for _, c := range change {
		c(&config)
	}
	relay, err := outbox.NewRelay(pool, b, config)
	require.NoError(p, err)
	return relay
}

// asItComes leaves the settings of a relay to their defaults, but for its logger.
func asItComes(c *outbox.RelayConfig) { *c = outbox.RelayConfig{Logger: c.Logger} }

// store commits messages in one transaction.
func (p *post) store(topic string, msgs ...*message.Message) []string {
	p.Helper()
	err := outbox.InTx(p.Context(), p.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
		return p.publishIn(ctx, topic, msgs)
	})
	require.NoError(p, err)
	return uuids(msgs)
}

// allSent waits until a broker has every message, and the outbox is empty.
func (p *post) allSent(b *strict, ids []string) {
	p.Helper()
	b.awaitAll(ids)
	rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
}

// sentOnce is allSent, and checks that each was sent once only.
func (p *post) sentOnce(b *strict, ids []string) {
	p.Helper()
	p.allSent(b, ids)
	b.once(ids)
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
	require.NoError(p, p.db.SelectContext(p.Context(), &rows,
		`SELECT id, uuid, topic, status, attempts, last_error, sent_at, blocked_key FROM millrace_outbox ORDER BY id`))
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

// events remembers everything that a relay tells.
type events struct {
	mu  sync.Mutex
	all []outbox.Event
}

func (e *events) observe(c *outbox.RelayConfig) { c.Observers = append(c.Observers, e) }

func (e *events) Observe(_ context.Context, event outbox.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// of returns the events of one kind.
func (e *events) of(kind string) []outbox.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var some []outbox.Event
	for _, o := range e.all {
		if o.Kind.String() == kind {
			some = append(some, o)
		}
	}
	return some
}

// about returns the events of one kind that name a message.
func (e *events) about(kind, uuid string) []outbox.Event {
	return slices.DeleteFunc(e.of(kind), func(o outbox.Event) bool { return o.UUID != uuid })
}
