// Package batch_test checks that each message of a batch is handled exactly once.
package batch_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(8)
	os.Exit(m.Run())
}

// bed is a service on a fresh database: a store, and a table of effects.
type bed struct {
	*testing.T
	db     *testdb.DB
	store  *inbox.Store
	events *rig.Events
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db, events: &rig.Events{}}
	b.store = b.newStore(db.DB)
	require.NoError(t, b.store.Migrate(t.Context()))
	db.Do(t, `CREATE TABLE effects (uuid VARCHAR(100))`)
	return b
}

func (b *bed) newStore(pool *sqlx.DB) *inbox.Store {
	b.Helper()
	return rig.NewStore(b, pool, inbox.Config{Observers: []inbox.Observer{ofMessages{b.events}}, Logger: b.events})
}

// ofMessages leaves out the events of whole batches.
type ofMessages struct{ inbox.Observer }

func (ofMessages) Wants(k inbox.Kind) bool { return k != inbox.KindBatch }

// twin returns the store of another process.
func (b *bed) twin() *inbox.Store { b.Helper(); return b.newStore(b.db.Open(b).DB) }

type handler = func(ctx context.Context, msgs []*message.Message) error

var errBoom = errors.New("boom")

// batch returns the handler of a consumer that waits until n messages are there.
func (b *bed) batch(n int, h handler, change ...func(*millrace.Batch)) message.HandlerFunc {
	b.Helper()
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store, Consumer: "billing"}, Max: n, Linger: rig.Patience}
	batch.Inbox.TwinWait, batch.Inbox.Timeout = rig.Patience, rig.Patience
	for _, c := range change {
		c(&batch)
	}
	return silent(batch.ConsumerHandler(h))
}

// silent returns h as a handler that may return messages, and returns none.
func silent(h message.NoPublishHandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) }
}

func on(store *inbox.Store) func(*millrace.Batch) {
	return func(b *millrace.Batch) { b.Inbox.Store = store }
}

// apply writes an effect for each message.
func apply(ctx context.Context, msgs []*message.Message) error {
	for _, msg := range msgs {
		if err := rig.Exec(ctx, `INSERT INTO effects (uuid) VALUES (?)`, msg.UUID); err != nil {
			return err
		}
	}
	return nil
}

func newMessages(n int) (msgs []*message.Message) {
	for range n {
		msgs = append(msgs, message.NewMessage(watermill.NewUUID(), []byte("x")))
	}
	return msgs
}

// copies are other deliveries of the same messages.
func copies(msgs []*message.Message) (all []*message.Message) {
	for _, m := range msgs {
		all = append(all, m.Copy())
	}
	return all
}

// start hands all messages to h at once.
func start(h message.HandlerFunc, msgs []*message.Message) (answers []<-chan error) {
	for _, m := range msgs {
		answers = append(answers, rig.Handle(h, m))
	}
	return answers
}

// errs waits for the answers.
func (b *bed) errs(answers []<-chan error) (all []error) {
	b.Helper()
	for _, a := range answers {
		all = append(all, rig.Within(b, a, "a message is not answered"))
	}
	return all
}

func (b *bed) must(h message.HandlerFunc, msgs []*message.Message) {
	b.Helper()
	for _, err := range b.errs(start(h, msgs)) {
		require.NoError(b, err)
	}
}

func (b *bed) effects() int { b.Helper(); return b.db.Count(b, `SELECT COUNT(*) FROM effects`) }

// once checks that each message has exactly one effect and a claim, and nothing else has.
func (b *bed) once(msgs []*message.Message) {
	b.Helper()
	for _, m := range msgs {
		assert.Equal(b, 1, b.db.Count(b, `SELECT COUNT(*) FROM effects WHERE uuid = ?`, m.UUID), m.UUID)
	}
	assert.Equal(b, len(msgs), b.effects())
	assert.Equal(b, len(msgs), b.db.Count(b, `SELECT COUNT(*) FROM millrace_claims WHERE result <> 0`))
}

// idle checks that every connection went back to the pool.
func (b *bed) idle(pool *sqlx.DB) {
	b.Helper()
	require.Eventually(b, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond)
}
