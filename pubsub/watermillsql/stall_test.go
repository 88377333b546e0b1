package watermillsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// On PostgreSQL a transaction that has written holds back every message that is published
// after it began, whichever database of the server it is in. One that only reads does not.
func TestOpenTransactionsStall(t *testing.T) {
	db, elsewhere := testdb.On(t, "postgres"), testdb.On(t, "postgres")
	p := newPublisher(t, db, "orders")
	messages := subscribe(t, newSubscriber(t, db, "group"), "orders")
	exec(t, elsewhere, `CREATE TABLE notes (id INTEGER)`)

	reading, err := elsewhere.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, err)
	defer func() { _ = reading.Rollback() }()
	var n int
	require.NoError(t, reading.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM notes`).Scan(&n))
	publish(t, p, "orders", "beside a reader")
	receive(t, messages).Ack()

	publish(t, p, "orders", "before")
	writing, err := elsewhere.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = writing.Rollback() }()
	_, err = writing.ExecContext(t.Context(), `INSERT INTO notes VALUES (1)`)
	require.NoError(t, err)
	publish(t, p, "orders", "after")
	before := receive(t, messages)
	assert.Equal(t, "before", before.UUID)
	before.Ack()
	silent(t, messages, "a writing transaction is open")
	require.NoError(t, writing.Rollback())
	assert.Equal(t, "after", receive(t, messages).UUID)
}

// The transaction of an inbox is such a transaction, wherever its message came from.
func TestInboxStalls(t *testing.T) {
	db, service := testdb.On(t, "postgres"), testdb.On(t, "postgres")
	p := newPublisher(t, db, "orders")
	messages := subscribe(t, newSubscriber(t, db, "group"), "orders")
	store, err := inbox.NewStore(service.DB, inbox.Config{})
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))

	running, finish, finished := make(chan struct{}), make(chan struct{}), make(chan error)
	handle := millrace.Inbox{Store: store, Consumer: "slow"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			close(running)
			<-finish
			_, err := inbox.Tx(msg.Context())
			return nil, err
		})
	go func() {
		_, err := handle(newMessage("1"))
		finished <- err
	}()
	rig.Within(t, running, "the handler runs")
	publish(t, p, "orders", "later")
	silent(t, messages, "a handler runs in the transaction of an inbox")
	close(finish)
	require.NoError(t, rig.Within(t, finished, "the handler ends"))
	assert.Equal(t, "later", receive(t, messages).UUID)
}

// A subscriber's own transaction is another: topics wait for each other's handlers.
func TestSubscribersStallEachOther(t *testing.T) {
	db := testdb.On(t, "postgres")
	p := newPublisher(t, db, "orders", "invoices")
	s := newSubscriber(t, db, "group")
	orders, invoices := subscribe(t, s, "orders"), subscribe(t, s, "invoices")
	publish(t, p, "orders", "slow")
	slow := receive(t, orders)
	publish(t, p, "invoices", "later")
	silent(t, invoices, "a message of another topic is being handled")
	slow.Ack()
	assert.Equal(t, "later", receive(t, invoices).UUID)
}

// A subscriber that reads up to the end of the table locks the end, on MySQL: whoever
// publishes waits for its batch. A batch of one, the default, does not lock it.
func TestBatchesLockTheEnd(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		for size, topic := range map[int]string{1: "ones", 10: "tens"} {
			p := newPublisher(t, db, topic)
			publish(t, p, topic, "1")
			s := newSubscriber(t, db, "group", batch(size))
			messages := subscribe(t, s, topic)
			first := receive(t, messages)
			published := make(chan error, 1)
			go func() { published <- p.Publish(topic, newMessage("2")) }()
			if size > 1 && db.Dialect == "mysql" {
				silent(t, messages, "the first message is being handled")
				assert.Empty(t, published, "Publish does not wait for the batch")
				first.Ack()
			}
			require.NoError(t, rig.Within(t, published, "Publish returns"))
			first.Ack()
			require.NoError(t, s.Close()) // on PostgreSQL it would stall the next
		}
	})
}

// A pool that is as small as its subscriptions leaves a handler's transaction no connection.
func TestHandlersNeedConnections(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		publish(t, newPublisher(t, db, "orders"), "orders", "1")
		for size, want := range map[int]error{1: context.DeadlineExceeded, 2: nil} {
			pool := db.Open(t, testdb.Pool(size))
			s := newSubscriber(t, pool, fmt.Sprint(size))
			receive(t, subscribe(t, s, "orders"))
			ctx, cancel := context.WithTimeout(t.Context(), map[int]time.Duration{1: time.Second / 2, 2: rig.Patience}[size])
			tx, err := pool.BeginTx(ctx, nil)
			require.ErrorIs(t, err, want)
			if err == nil {
				require.NoError(t, tx.Rollback())
			}
			cancel()
			require.NoError(t, s.Close())
		}
	})
}

// The statement takes a batch from the primary key. watermill-sql's own sorts all that is
// not yet consumed, for each batch.
func TestBatchIsReadFromTheIndex(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders")
		for range 5 {
			uuids := make([]string, 1000)
			publish(t, p, "orders", uuids...)
		}
		exec(t, db, map[string]string{
			"postgres": `ANALYZE watermill_orders`, "mysql": `ANALYZE TABLE watermill_orders`,
		}[db.Dialect])
		log := &queryLog{queries: make(chan string, 1)}
		logger := watermill.LoggerAdapter(log)
		config := func(c *watermillsql.SubscriberConfig) { c.Logger = logger }
		s := newSubscriber(t, db, "group", config)
		receive(t, subscribe(t, s, "orders")).Ack()
		query := rig.Within(t, log.queries, "the query")
		require.NoError(t, s.Close()) // MariaDB runs a part of what it explains

		plan := explain(t, db, query)
		assert.NotContains(t, strings.ToLower(plan), "sort", plan)
		assert.Contains(t, plan, map[string]string{
			"postgres": "Index Scan using watermill_orders_pkey", "mysql": "range",
		}[db.Dialect], plan)
	})
}

func explain(t *testing.T, db *testdb.DB, query string) (plan string) {
	t.Helper()
	rows, err := db.QueryxContext(t.Context(), map[bool]string{true: "EXPLAIN FORMAT=TRADITIONAL ", false: "EXPLAIN "}[db.MySQL()]+query, "group")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		line, err := rows.SliceScan()
		require.NoError(t, err)
		for _, cell := range line {
			switch c := cell.(type) {
			case []byte:
				plan += " " + string(c)
			case string:
				plan += " " + c
			}
		}
		plan += "\n"
	}
	require.NoError(t, rows.Err())
	return plan
}

// queryLog keeps the first statement that watermill-sql tells.
type queryLog struct {
	watermill.NopLogger
	once    sync.Once
	queries chan string
}

func (l *queryLog) Trace(msg string, fields watermill.LogFields) {
	if query, found := fields["query"].(string); found && msg == "Querying message" {
		l.once.Do(func() { l.queries <- query })
	}
}
func (l *queryLog) With(watermill.LogFields) watermill.LoggerAdapter { return l }

var errBoom = errors.New("boom")
