package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/outbox"
)

// exampleDB opens a SQLite file in dir.
func exampleDB(dir string) *sqlx.DB {
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	return db
}

// exampleOutbox is an outbox in a file of its own, in which the statements were run. The
// returned function removes it.
func exampleOutbox(config outbox.Config, statements ...string) (*sqlx.DB, *outbox.Publisher, func()) {
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	db := exampleDB(dir)
	out, err := outbox.NewPublisher(db, config)
	check(err)
	check(out.Migrate(context.Background()))
	for _, s := range statements {
		_, err := db.Exec(s)
		check(err)
	}
	return db, out, func() {
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

// An order and the event that tells of it, in one transaction, and the relay that sends it.
// The second order fails, so nobody hears of it.
func ExamplePublisher() {
	db, out, done := exampleOutbox(outbox.Config{OrderKey: outbox.ByTopic()}, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	defer done()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	events, err := broker.Subscribe(context.Background(), "orders")
	check(err)
	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- relay.Run(ctx) }()

	place := func(ctx context.Context, id, uuid string) error {
		return outbox.InTx(ctx, db, func(ctx context.Context, tx *sqlx.Tx) error {
			event := message.NewMessage(uuid, []byte(id))
			event.SetContext(ctx) // says in which transaction it is stored
			if err := out.Publish("orders", event); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?)`, id)
			return err
		})
	}
	for _, uuid := range []string{"event-1", "event-2"} {
		if err := place(ctx, "order-1", uuid); err != nil {
			fmt.Println("rolled back:", uuid)
		}
	}
	check(place(ctx, "order-2", "event-3"))
	for range 2 {
		event := <-events
		fmt.Println(event.UUID, "was sent:", string(event.Payload))
		event.Ack()
	}
	stop()
	check(<-stopped)
	// Output:
	// rolled back: event-2
	// event-1 was sent: order-1
	// event-3 was sent: order-2
}

// An HTTP handler that begins and ends its own transaction.
func ExampleWithTx() {
	db, out, done := exampleOutbox(outbox.Config{}, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	defer done()
	place := func(ctx context.Context, id string) error {
		tx, err := db.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to undo
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?)`, id); err != nil {
			return err
		}
		event := message.NewMessage(watermill.NewUUID(), []byte(id))
		event.SetContext(outbox.WithTx(ctx, tx))
		if err := out.Publish("orders", event); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		out.Wake() // a relay would find the event without it too, a little later
		return nil
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := place(r.Context(), r.FormValue("id")); err != nil {
			w.WriteHeader(http.StatusConflict)
		}
	})

	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders?id=7", nil))
		fmt.Println(w.Code)
	}
	backlog, err := out.Backlog(context.Background(), outbox.BacklogOptions{})
	check(err)
	fmt.Println("to be sent:", backlog.Unsent())
	// Output:
	// 200
	// 409
	// to be sent: 1
}

// Where a context carries a transaction already, InTx joins it: functions that need one can
// call each other, and whoever began it commits all of it or nothing.
func ExampleInTx() {
	ctx := context.Background()
	db, out, done := exampleOutbox(outbox.Config{}, `CREATE TABLE stock (item TEXT, count INTEGER)`)
	defer done()
	add := func(ctx context.Context, item string, count int) error {
		return outbox.InTx(ctx, db, func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO stock VALUES (?, ?)`, item, count)
			event := message.NewMessage(watermill.NewUUID(), []byte(item))
			event.SetContext(ctx)
			return errors.Join(err, out.Publish("stock", event))
		})
	}
	err := outbox.InTx(ctx, db, func(ctx context.Context, _ *sqlx.Tx) error {
		check(add(ctx, "bolt", 100))
		check(add(ctx, "nut", 100))
		return errors.New("there are no screws")
	})
	fmt.Println(err)
	var items int
	check(db.Get(&items, `SELECT COUNT(*) FROM stock`))
	backlog, err := out.Backlog(ctx, outbox.BacklogOptions{})
	check(err)
	fmt.Println("items:", items, "to be sent:", backlog.Unsent())
	// Output:
	// there are no screws
	// items: 0 to be sent: 0
}

// Watermill's CQRS buses work unchanged: they put the context into their messages.
func ExamplePublisher_cqrs() {
	type OrderPlaced struct{ Order string }
	ctx := context.Background()
	db, out, done := exampleOutbox(outbox.Config{})
	defer done()
	events, err := cqrs.NewEventBusWithConfig(out, cqrs.EventBusConfig{
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return "events", nil
		},
	})
	check(err)

	err = events.Publish(ctx, OrderPlaced{"7"})
	fmt.Println("without a transaction:", errors.Is(err, outbox.ErrNoTx))
	check(outbox.InTx(ctx, db, func(ctx context.Context, _ *sqlx.Tx) error {
		return events.Publish(ctx, OrderPlaced{"7"})
	}))
	var stored struct{ Topic, Type, Payload string }
	check(db.QueryRow(`SELECT topic, event_type, payload FROM millrace_outbox`).
		Scan(&stored.Topic, &stored.Type, &stored.Payload))
	fmt.Println(stored.Topic, stored.Type, stored.Payload)
	// Output:
	// without a transaction: true
	// events OrderPlaced {"Order":"7"}
}
