package watermillsql_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Every message is published twice, every third handler fails once, and the router is
// closed in the middle of a run: each effect is there once, and each invoice, however often
// it is published, is the same.
func TestInboxBehindASubscriber(t *testing.T) {
	const orders = 20
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders", "invoices")
		exec(t, db, `CREATE TABLE effects (uuid VARCHAR(36))`)
		for n := range orders {
			publish(t, p, "orders", fmt.Sprint(n), fmt.Sprint(n))
		}
		invoices := subscribe(t, newSubscriber(t, db, "reader"), "invoices")
		b := &billing{T: t, db: db, runs: map[string]int{}, interrupt: "7", interrupted: make(chan struct{})}
		stop := b.start()
		issued := map[string]string{}
		interrupted := b.interrupted
		for len(issued) < orders || interrupted != nil {
			select {
			case msg := <-invoices:
				source := string(msg.Payload)
				if known, again := issued[source]; again {
					assert.Equal(t, known, msg.UUID, "the invoice for %s", source)
				}
				issued[source] = msg.UUID
				msg.Ack()
			case <-interrupted:
				interrupted = nil
				stop()
				stop = b.start()
			case <-time.After(rig.Patience):
				require.Fail(t, "invoices are missing", "%d of %d", len(issued), orders)
			}
		}
		b.drained("orders", "billing", 2*orders)
		stop()
		for n := range orders {
			var effects int
			require.NoError(t, db.GetContext(t.Context(), &effects,
				db.Rebind(`SELECT COUNT(*) FROM effects WHERE uuid = ?`), fmt.Sprint(n)))
			assert.Equal(t, 1, effects, "of order %d", n)
			assert.Equal(t, b.expected(fmt.Sprint(n)), b.runs[fmt.Sprint(n)], "runs of order %d", n)
		}
	})
}

// billing is a service that may be started again.
type billing struct {
	*testing.T
	db          *testdb.DB
	mu          sync.Mutex
	runs        map[string]int
	interrupt   string // the message in whose first run the router is closed
	interrupted chan struct{}
}

// expected is how often a message's handler runs.
func (b *billing) expected(uuid string) int {
	if uuid == b.interrupt || fails(uuid) {
		return 2
	}
	return 1
}

func fails(uuid string) bool { return uuid[len(uuid)-1] == '3' }

func (b *billing) start() (stop func()) {
	b.Helper()
	db := b.db.Open(b.T)
	store, err := inbox.NewStore(db.DB, inbox.Config{})
	require.NoError(b, err)
	require.NoError(b, store.Migrate(b.Context()))
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: rig.Patience}, watermill.NopLogger{})
	require.NoError(b, err)
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	router.AddHandler("billing", "orders", newSubscriber(b.T, db, "billing"),
		"invoices", newPublisher(b.T, db), b.handle)
	stopped := make(chan error, 1)
	ctx := context.WithoutCancel(b.Context())
	go func() { stopped <- router.Run(ctx) }()
	rig.Within(b.T, router.Running(), "the router runs")
	return func() {
		b.Helper()
		require.NoError(b, router.Close())
		require.NoError(b, rig.Within(b.T, stopped, "the router ends"))
		require.NoError(b, store.Close(ctx))
	}
}

func (b *billing) handle(msg *message.Message) ([]*message.Message, error) {
	b.mu.Lock()
	b.runs[msg.UUID]++
	first := b.runs[msg.UUID] == 1
	b.mu.Unlock()
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, tx.Rebind(`INSERT INTO effects (uuid) VALUES (?)`), msg.UUID)
	switch {
	case err != nil:
		return nil, err
	case first && msg.UUID == b.interrupt:
		close(b.interrupted)
		<-ctx.Done() // the router closes
		return nil, ctx.Err()
	case first && fails(msg.UUID):
		return nil, errBoom
	}
	return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(msg.UUID))}, nil
}

// drained waits until a group has acked n messages.
func (b *billing) drained(topic, group string, n int) {
	b.Helper()
	const done = `SELECT COUNT(*) FROM watermill_%[1]s WHERE %[2]s <=
		(SELECT offset_acked FROM watermill_offsets_%[1]s WHERE consumer_group = ?)`
	offset := map[string]string{"postgres": `"offset"`, "mysql": "`offset`"}[b.db.Dialect]
	require.Eventually(b, func() bool {
		var acked int
		err := b.db.GetContext(b.Context(), &acked, b.db.Rebind(fmt.Sprintf(done, topic, offset)), group)
		return err == nil && acked >= n
	}, rig.Patience, 10*time.Millisecond, "the group acks every message")
}

// What every group has acked can be deleted by the statement of the documentation.
func TestDeleteWhatIsAcked(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		publish(t, newPublisher(t, db, "orders"), "orders", "1", "2", "3")
		for group, reads := range map[string]int{"fast": 3, "slow": 2} {
			s := newSubscriber(t, db, group)
			messages := subscribe(t, s, "orders")
			for range reads {
				receive(t, messages).Ack()
			}
			if group == "slow" {
				receive(t, messages) // the second is acked in the database, this one is not
			}
			(&billing{T: t, db: db}).drained("orders", group, reads)
			require.NoError(t, s.Close())
		}
		deleteAcked(t, db)
		var left []string
		require.NoError(t, db.SelectContext(t.Context(), &left, `SELECT uuid FROM watermill_orders`))
		assert.Equal(t, []string{"3"}, left)
	})
}

// Before the first group has come, nothing is acked.
func TestDeleteNothingThatNoGroupHasAcked(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		publish(t, newPublisher(t, db, "orders"), "orders", "1", "2", "3")
		deleteAcked(t, db)
		assert.Equal(t, 3, db.Count(t, `SELECT COUNT(*) FROM watermill_orders`))
	})
}

// deleteAcked runs the statement of the documentation.
func deleteAcked(t *testing.T, db *testdb.DB) {
	t.Helper()
	exec(t, db, documented(t, map[string]string{"postgres": `DELETE FROM "`, "mysql": "DELETE FROM `"}[db.Dialect]))
}
