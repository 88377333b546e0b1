package replay_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var ada = admin.Operator{Name: "ada", Reason: "the projection lost a column"}

// bed is a service with an outbox, a relay that keeps what it sends, and two consumers of what that
// sends: a projection, and one that mails.
type bed struct {
	*testing.T
	db     *testdb.DB
	store  *inbox.Store
	out    *outbox.Publisher
	events *rig.Events

	mu         sync.Mutex
	projection message.HandlerFunc
	mailing    message.HandlerFunc
	seen       []*message.Message // by the broker
}

const accounts = 20

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db, events: &rig.Events{}}
	b.store = rig.NewStore(t, db.DB, inbox.Config{WithoutPlugin: true, Observers: []inbox.Observer{b.events}})
	require.NoError(t, b.store.Migrate(t.Context()))
	b.out = rig.NewOutbox(t, db.DB, outbox.Config{OrderKey: replay.OrderKey})
	b.exec(`CREATE TABLE projection (account BIGINT NOT NULL PRIMARY KEY, total BIGINT NOT NULL, orders BIGINT NOT NULL)`)
	b.exec(`CREATE TABLE mails (uuid VARCHAR(60) NOT NULL)`)
	for i := range accounts {
		b.exec(`INSERT INTO projection (account, total, orders) VALUES (?, 0, 0)`, i)
	}
	b.epoch(0)
	b.mailing = millrace.Inbox{Store: b.store, Consumer: "mail", Options: inbox.Options{OnReplay: inbox.ReplayRefuse, TwinWait: rig.Patience}}.Middleware(b.mail)
	return b
}

// epoch has the projection be of an epoch.
func (b *bed) epoch(epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.projection = millrace.Inbox{Store: b.store, Consumer: "projection", Options: inbox.Options{Epoch: epoch, Journal: true, TwinWait: rig.Patience}}.Middleware(project)
}

func (b *bed) exec(query string, args ...any) { b.Helper(); b.db.Do(b, query, args...) }

func (b *bed) count(query string, args ...any) int {
	b.Helper()
	return b.db.Count(b, query, args...)
}

// amount is what order i pays, and by whom.
func amount(i int) (account, cents int) { return i % accounts, i%97 + 1 }

// project is the projection's handler.
func project(msg *message.Message) ([]*message.Message, error) {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return nil, err
	}
	var account, cents int
	if _, err := fmt.Sscanf(string(msg.Payload), "%d pays %d", &account, &cents); err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(msg.Context(),
		tx.Rebind(`UPDATE projection SET total = total + ?, orders = orders + 1 WHERE account = ?`), cents, account)
	return nil, err
}

// mail is the handler that mails. Mails are counted in the transaction: a handler that met a deadlock runs again.
func (b *bed) mail(msg *message.Message) ([]*message.Message, error) {
	return nil, rig.Exec(msg.Context(), `INSERT INTO mails (uuid) VALUES (?)`, msg.UUID)
}

// mailed tells how many messages were mailed, and how many mails went out.
func (b *bed) mailed() (messages, mails int) {
	b.Helper()
	return b.count(`SELECT COUNT(DISTINCT uuid) FROM mails`), b.count(`SELECT COUNT(*) FROM mails`)
}

// Publish is the broker: both consumers have each message at once.
func (b *bed) Publish(_ string, msgs ...*message.Message) error {
	b.mu.Lock()
	b.seen = append(b.seen, msgs...)
	consumers := []message.HandlerFunc{b.projection, b.mailing}
	b.mu.Unlock()
	for _, msg := range msgs {
		for _, handle := range consumers {
			if _, err := handle(msg.Copy()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close does nothing.
func (b *bed) Close() error { return nil }

// sent is how many messages came to the broker.
func (b *bed) sent() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen)
}

// orders stores n orders in the outbox, of which every tenth has an order key.
func (b *bed) orders(n int) {
	b.Helper()
	const atOnce = 1000
	for from := 0; from < n; from += atOnce {
		err := outbox.InTx(b.Context(), b.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
			var msgs []*message.Message
			for i := from; i < min(from+atOnce, n); i++ {
				account, cents := amount(i)
				msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "%d pays %d", account, cents))
				msg.Metadata.Set("correlation_id", fmt.Sprint("order ", i))
				msg.SetContext(ctx)
				msgs = append(msgs, msg)
			}
			return b.out.Publish("orders", msgs...)
		})
		require.NoError(b, err)
	}
}

// relay sends what is in the outbox, and keeps it, until the test ends.
func (b *bed) relay() {
	b.Helper()
	relay, err := outbox.NewRelay(b.db.DB, b, outbox.RelayConfig{Retention: outbox.Forever, Lanes: 8, Poll: 50 * time.Millisecond})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Logf("the relay: %v", err) // of a test that failed
		}
	})
}

func (b *bed) replayer() *replay.Replayer {
	b.Helper()
	r, err := replay.New(b.db.DB, b.store, replay.Config{Logger: b.events})
	require.NoError(b, err)
	return r
}

// run runs a replay to its end.
func (b *bed) run(r replay.Request) replay.Status {
	b.Helper()
	status, err := b.replayer().Run(b.Context(), r)
	require.NoError(b, err)
	return status
}

func (b *bed) plan(r replay.Request) replay.Plan {
	b.Helper()
	plan, err := b.replayer().Plan(b.Context(), r)
	require.NoError(b, err)
	return plan
}

// archived stores n orders in the outbox, all sent.
func (b *bed) archived(n int) {
	b.Helper()
	b.orders(n)
	b.exec(`UPDATE millrace_outbox SET status = 4, sent_at = created_at`)
}

// request asks for all orders of the archive again.
func (b *bed) request(name string) replay.Request {
	return replay.Request{
		Name: name, From: replay.Archive(b.out), To: replay.Outbox(b.out), By: ada, Filter: replay.Filter{Topic: "orders"},
		PerSecond: 1_000_000,
	}
}

// pending is how many messages are not sent yet.
func (b *bed) pending() int { return b.count(`SELECT COUNT(*) FROM millrace_outbox WHERE status <> 4`) }

// truth is what the projection must be after n orders.
func (b *bed) truth(n int) {
	b.Helper()
	var total, orders [accounts]int
	for i := range n {
		account, cents := amount(i)
		total[account] += cents
		orders[account]++
	}
	var rows []struct{ Account, Total, Orders int }
	require.NoError(b, b.db.SelectContext(b.Context(), &rows, `SELECT account, total, orders FROM projection ORDER BY account`))
	require.Len(b, rows, accounts)
	for _, r := range rows {
		require.Equal(b, total[r.Account], r.Total, "account %d", r.Account)
		require.Equal(b, orders[r.Account], r.Orders, "account %d", r.Account)
	}
}
