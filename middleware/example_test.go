package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
)

// exampleStore opens a SQLite file of its own, migrates it and runs the statements. The
// returned function removes it.
func exampleStore(statements ...string) (*sqlx.DB, *inbox.Store, func()) {
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(context.Background()))
	for _, s := range statements {
		_, err := db.Exec(s)
		check(err)
	}
	return db, store, func() {
		check(store.Close(context.Background()))
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A service: the payment is delivered twice and posted once.
func ExampleInbox() {
	db, store, done := exampleStore(
		`CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER)`,
		`INSERT INTO account VALUES ('ann', 0)`)
	defer done()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(middleware.Retry{MaxRetries: 3}.Middleware) // Watermill's, outside
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddMiddleware(middleware.CorrelationID) // inside
	router.AddConsumerHandler("accounts", "payments", broker, func(msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(msg.Context(), `UPDATE account SET balance = balance + 10 WHERE id = ?`, string(msg.Payload))
		return err
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	for range 2 {
		check(broker.Publish("payments", message.NewMessage("payment-1", []byte("ann"))))
	}
	check(router.Close())
	check(<-stopped)

	var balance int
	check(db.Get(&balance, `SELECT balance FROM account WHERE id = 'ann'`))
	fmt.Println("balance:", balance)
	// Output: balance: 10
}

// lossyBroker fails to publish the first time: as if the process had died in between.
type lossyBroker struct {
	message.Publisher
	failures chan struct{}
}

func (b lossyBroker) Publish(topic string, msgs ...*message.Message) error {
	select {
	case <-b.failures:
		fmt.Println("lost", msgs[0].UUID)
		return errors.New("connection reset")
	default:
		return b.Publisher.Publish(topic, msgs...)
	}
}

// What a handler returns is kept in its transaction. Where it could not be published, the
// redelivery publishes the same messages without running the handler again.
func ExampleInbox_returnedMessages() {
	_, store, done := exampleStore()
	defer done()
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	lossy := lossyBroker{Publisher: broker, failures: make(chan struct{}, 1)}
	lossy.failures <- struct{}{}

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	runs := 0
	router.AddHandler("shop", "orders", broker, "receipts", lossy,
		func(msg *message.Message) ([]*message.Message, error) {
			runs++
			receipt := message.NewMessage(fmt.Sprintf("receipt-of-run-%d", runs), msg.Payload)
			return message.Messages{receipt}, nil
		})
	receipts, err := broker.Subscribe(context.Background(), "receipts")
	check(err)
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	check(broker.Publish("orders", message.NewMessage("order-1", []byte("10 EUR"))))
	receipt := <-receipts
	receipt.Ack()
	check(router.Close())
	check(<-stopped)

	fmt.Println("received", receipt.UUID)
	fmt.Println("handler runs:", runs)
	// Output:
	// lost receipt-of-run-1
	// received receipt-of-run-1
	// handler runs: 1
}

// OnBegin runs first in each transaction, for instance to set a tenant for row-level
// security. Here it keeps an account of who touched the database.
func ExampleInbox_onBegin() {
	db, store, done := exampleStore(`CREATE TABLE visit (tenant TEXT)`)
	defer done()

	handler := millrace.Inbox{
		Store:    store,
		Consumer: "reports",
		Options: inbox.Options{
			OnBegin: func(ctx context.Context, tx *sqlx.Tx, msg *message.Message) error {
				// On PostgreSQL: SELECT set_config('app.tenant', $1, true)
				_, err := tx.ExecContext(ctx, `INSERT INTO visit (tenant) VALUES (?)`, msg.Metadata.Get("tenant"))
				return err
			},
		},
	}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := inbox.Tx(msg.Context())
		return nil, err
	})

	msg := message.NewMessage("report-1", nil)
	msg.Metadata.Set("tenant", "acme")
	_, err := handler(msg)
	check(err)
	var tenant string
	check(db.Get(&tenant, `SELECT tenant FROM visit`))
	fmt.Println(tenant)
	// Output: acme
}

// Skip is for handlers that need no memory, where one middleware serves a whole router.
func ExampleInbox_skip() {
	_, store, done := exampleStore()
	defer done()

	runs := 0
	handler := millrace.Inbox{
		Store:    store,
		Consumer: "all",
		Skip:     func(msg *message.Message) bool { return msg.Metadata.Get("name") == "Heartbeat" },
	}.Middleware(func(*message.Message) ([]*message.Message, error) {
		runs++
		return nil, nil
	})

	for range 3 {
		msg := message.NewMessage("heartbeat-1", nil)
		msg.Metadata.Set("name", "Heartbeat")
		_, err := handler(msg)
		check(err)
	}
	fmt.Println("runs:", runs)
	// Output: runs: 3
}

// Different messages about one order are one message where the order is the key.
func ExampleInbox_key() {
	_, store, done := exampleStore()
	defer done()

	runs := 0
	handler := millrace.Inbox{
		Store:    store,
		Consumer: "welcome",
		Key:      inbox.ByJSON("order.id").WithinType(),
	}.Middleware(func(*message.Message) ([]*message.Message, error) {
		runs++
		return nil, nil
	})

	for _, uuid := range []string{"uuid-1", "uuid-2"} {
		msg := message.NewMessage(uuid, []byte(`{"order": {"id": 42}}`))
		msg.Metadata.Set("name", "OrderPlaced")
		_, err := handler(msg)
		check(err)
	}
	fmt.Println("runs:", runs)
	// Output: runs: 1
}

// RequireTx refuses a handler that forgot the transaction.
func ExampleInbox_requireTx() {
	db, store, done := exampleStore(`CREATE TABLE visit (tenant TEXT)`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "reports", Options: inbox.Options{RequireTx: true}}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			var n int // through the pool, which the record of the message knows nothing of
			return nil, db.GetContext(msg.Context(), &n, `SELECT COUNT(*) FROM visit`)
		})

	_, err := handler(message.NewMessage("report-1", nil))
	fmt.Println(errors.Is(err, inbox.ErrTxNotUsed))
	// Output: true
}

// RecordFailures keeps a message that fails, whole, with how often it was tried and the last
// error. The broker goes on delivering it.
func ExampleInbox_recordFailures() {
	_, store, done := exampleStore()
	defer done()

	runs := 0
	handler := millrace.Inbox{Store: store, Consumer: "mail", Options: inbox.Options{RecordFailures: true}}.Middleware(
		func(*message.Message) ([]*message.Message, error) {
			runs++
			if runs <= 2 {
				return nil, errors.New("mail server down")
			}
			return nil, nil
		})

	deliver(handler, "order-1", "order-1")
	story, err := admin.New(store).Story(context.Background(), "order-1")
	check(err)
	for _, m := range story.Open {
		fmt.Printf("%v, attempts %d: %s\n", m.Status, m.Attempts, m.LastError)
	}
	deliver(handler, "order-1")
	story, err = admin.New(store).Story(context.Background(), "order-1")
	check(err)
	fmt.Println("completed:", story.Claims[0].Completed)
	// Output:
	// order-1 came too early or failed, and will come again
	// order-1 came too early or failed, and will come again
	// FAILED_RETRYABLE, attempts 2: mail server down
	// completed: true
}

// What else may be set. Store alone is required.
func ExampleInbox_settings() {
	_, store, done := exampleStore()
	defer done()

	settings := millrace.Inbox{
		Store:    store,
		Consumer: "accounts",
		Timeout:  10 * time.Second,
		Options: inbox.Options{
			TwinWait:    2 * time.Second,
			MaxInFlight: 8,
			Window:      3 * 24 * time.Hour, // the broker keeps messages for three days
			Retention:   6 * 24 * time.Hour,
			RequireTx:   true,
		},
	}
	fmt.Println(settings.Validate())
	// Output: <nil>
}
