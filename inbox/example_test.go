package inbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
)

// exampleStore opens a SQLite file of its own, migrates it and runs the statements. The
// returned function removes it.
func exampleStore(config inbox.Config, statements ...string) (*sqlx.DB, *inbox.Store, func()) {
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	store, err := inbox.NewStore(db, config)
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

// One statement through the transaction: it is committed with the record that the message
// was handled, so the second delivery changes nothing.
func ExampleTx() {
	db, store, done := exampleStore(inbox.Config{},
		`CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)`,
		`INSERT INTO account VALUES (7, 0)`)
	defer done()

	post := func(msg *message.Message) ([]*message.Message, error) {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(msg.Context(), `UPDATE account SET balance = balance + 10 WHERE id = 7`)
		return nil, err
	}
	handler := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(post)

	for range 3 {
		_, err := handler(message.NewMessage("payment-1", nil)) // as a router does
		check(err)
	}
	var balance int
	check(db.Get(&balance, `SELECT balance FROM account WHERE id = 7`))
	fmt.Println("balance:", balance)
	// Output: balance: 10
}

// queries is what sqlc generates: it takes anything with the methods of a *sql.Tx.
type queries struct{ db dbtx }

type dbtx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func newQueries(db dbtx) *queries { return &queries{db} }

func (q *queries) AddInvoice(ctx context.Context, order string) error {
	_, err := q.db.ExecContext(ctx, `INSERT INTO invoice (order_id) VALUES (?)`, order)
	return err
}

// Code that sqlc generated, and all other code that wants a *sql.Tx, gets the one embedded
// in the *sqlx.Tx.
func ExampleTx_sqlTx() {
	db, store, done := exampleStore(inbox.Config{}, `CREATE TABLE invoice (order_id TEXT)`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "invoices"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			return nil, newQueries(tx.Tx).AddInvoice(msg.Context(), string(msg.Payload))
		})

	for range 2 {
		_, err := handler(message.NewMessage("order-placed-1", []byte("order-1")))
		check(err)
	}
	var invoices int
	check(db.Get(&invoices, `SELECT COUNT(*) FROM invoice`))
	fmt.Println("invoices:", invoices)
	// Output: invoices: 1
}

// What a handler found out is kept with the message, for whoever asks later.
func ExampleSetResult() {
	_, store, done := exampleStore(inbox.Config{})
	defer done()

	type booking struct {
		Seat string `json:"seat"`
	}
	handler := millrace.Inbox{Store: store, Consumer: "seats"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			return nil, inbox.SetResult(msg.Context(), booking{Seat: "12A"})
		})
	_, err := handler(message.NewMessage("book-1", nil))
	check(err)

	result, err := store.Result(context.Background(), "seats", "book-1")
	check(err)
	fmt.Printf("%s\n", result)
	// Output: {"seat":"12A"}
}

// Result answers a caller who sends a request twice, for example an HTTP handler that waits
// for its command.
func ExampleStore_Result() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()

	_, err := store.Result(ctx, "seats", "book-1")
	fmt.Println("not handled yet:", errors.Is(err, inbox.ErrNotFound))

	handler := millrace.Inbox{Store: store, Consumer: "seats"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			return nil, inbox.SetResult(msg.Context(), map[string]string{"seat": "12A"})
		})
	_, err = handler(message.NewMessage("book-1", nil))
	check(err)

	body, err := store.Result(ctx, "seats", "book-1")
	check(err)
	var result struct{ Seat string }
	check(json.Unmarshal(body, &result))
	fmt.Println("seat:", result.Seat)
	// Output:
	// not handled yet: true
	// seat: 12A
}

// Each key function, asked whether two different messages are one message to it.
func ExampleKey() {
	order := func(uuid, eventID string, offset int64) *message.Message {
		msg := message.NewMessage(uuid, []byte(`{"order": {"id": 42}, "status": "paid"}`))
		msg.Metadata = message.Metadata{
			"order_id": "42", "name": "OrderPaid", // as Watermill's CQRS names the type
			"ce_source": "/shop", "ce_id": eventID,
			"offset": fmt.Sprint(offset),
		}
		return msg
	}
	// Sent twice by its producer: the same content, with an identity of its own each time.
	a, b := order("uuid-1", "event-1", 100), order("uuid-2", "event-2", 101)

	position := func(msg *message.Message) (inbox.Position, error) {
		var offset int64
		_, err := fmt.Sscan(msg.Metadata["offset"], &offset)
		return inbox.Position{Topic: "orders", Partition: "0", Offset: offset}, err
	}
	size := func(msg *message.Message) (string, error) { return fmt.Sprint(len(msg.Payload)), nil }

	for _, key := range []inbox.Key{
		inbox.ByUUID(),
		inbox.ByCloudEvent(),
		inbox.ByPosition(position),
		inbox.ByMetadata("order_id"),
		inbox.ByJSON("order.id", "status"),
		inbox.ByPayload(),
		inbox.ByFunc("payload size", size),
		inbox.ByMetadata("order_id").WithinType(),
		inbox.Joined(inbox.ByMetadata("order_id"), inbox.ByUUID()),
		inbox.FirstOf(inbox.ByMetadata("request_id"), inbox.ByMetadata("order_id")),
	} {
		keyA, err := key.Of(a)
		check(err)
		keyB, err := key.Of(b)
		check(err)
		fmt.Printf("%-56s one message: %t\n", key, keyA == keyB)
	}
	// Output:
	// uuid                                                     one message: false
	// cloudevent                                               one message: false
	// position                                                 one message: false
	// metadata:"order_id"                                      one message: true
	// json:"order.id","status"                                 one message: true
	// payload                                                  one message: true
	// func:"payload size"                                      one message: true
	// metadata:"order_id"/type                                 one message: true
	// joined(metadata:"order_id",uuid)                         one message: false
	// first(metadata:"request_id",metadata:"order_id")         one message: true
}

// What a handler returned is listed until it is known that the broker has it. Redispatch
// sends what no redelivery asked for.
func ExampleStore_Redispatch() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()

	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	nowhere := brokenPublisher{failed: make(chan struct{}, 1)}
	router.AddHandler("orders", "payments", channel, "receipts", nowhere,
		func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("receipt-1", []byte("paid"))}, nil
		})
	go func() { check(router.Run(ctx)) }()
	<-router.Running()
	check(channel.Publish("payments", message.NewMessage("payment-1", nil)))
	<-nowhere.failed
	check(router.Close())

	outcomes, err := admin.New(store).Unsettled(ctx, admin.ConsumerFilter{}, 0, 100)
	check(err)
	for _, o := range outcomes {
		fmt.Printf("%s of consumer %s: %d message for %s\n", o.MessageID, o.Consumer, len(o.Messages), o.Topic)
	}
	sent, err := store.Redispatch(ctx, gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}), 0)
	check(err)
	fmt.Println("sent:", sent)
	// Output:
	// payment-1 of consumer orders: 1 message for receipts
	// sent: 1
}

// brokenPublisher cannot publish.
type brokenPublisher struct{ failed chan struct{} }

func (p brokenPublisher) Publish(string, ...*message.Message) error {
	select {
	case p.failed <- struct{}{}:
	default:
	}
	return errors.New("the broker is down")
}

func (brokenPublisher) Close() error { return nil }

// Purge deletes what is older than each consumer's retention: for services that rather call
// it from cron than run the plugin.
func ExampleStore_Purge() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "seats", Options: inbox.Options{Retention: 24 * time.Hour}}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) { return nil, nil })
	_, err := handler(message.NewMessage("book-1", nil))
	check(err)

	deleted, err := store.Purge(ctx)
	check(err)
	fmt.Println("deleted:", deleted)
	// Output: deleted: 0
}

// One handler for several versions of an event. A version that it does not know is put away for
// an operator, and nobody waits for it.
func ExampleErrUnknownType() {
	byVersion := map[string]message.NoPublishHandlerFunc{
		"1": func(*message.Message) error { fmt.Println("the first version"); return nil },
		"2": func(*message.Message) error { fmt.Println("the second version"); return nil },
	}
	handle := func(msg *message.Message) error {
		version := msg.Metadata.Get("event_version")
		if handle := byVersion[version]; handle != nil {
			return handle(msg)
		}
		return inbox.Terminal(fmt.Errorf("%w: version %q", inbox.ErrUnknownType, version))
	}
	for _, version := range []string{"2", "3"} {
		msg := message.NewMessage(watermill.NewUUID(), nil)
		msg.Metadata.Set("event_version", version)
		if err := handle(msg); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// the second version
	// no handler knows this event type: version "3"
}
