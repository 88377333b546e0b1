package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/outbox"
)

// unroutable is a broker without queues.
type unroutable struct{}

func (unroutable) Publish(topic string, _ ...*message.Message) error {
	return outbox.Permanent(errors.New("no queue takes messages to " + topic))
}

func (unroutable) Close() error { return nil }

// What nobody takes is parked after its attempts, and an operator decides.
func ExamplePublisher_Parked() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	defer func() { check(db.Close()) }()
	publisher, err := outbox.NewPublisher(db, outbox.Config{Standalone: true})
	check(err)
	check(publisher.Migrate(ctx))
	check(publisher.Publish("orders", message.NewMessage("order-1", nil), message.NewMessage("order-2", nil)))

	relay, err := outbox.NewRelay(db, unroutable{}, outbox.RelayConfig{MaxAttempts: 1, Lanes: 1})
	check(err)
	_, err = relay.RelayBatch(ctx)
	fmt.Println(err)

	parked, err := publisher.Parked(ctx, 0, 100)
	check(err)
	for _, p := range parked {
		fmt.Println(p.Message.UUID, "after", p.Attempts, "attempt:", p.Error)
	}
	check(publisher.Retry(ctx, parked[0].ID, outbox.Operator{Name: "ann", Reason: "the queue exists now"}))
	check(publisher.Discard(ctx, parked[1].ID, outbox.Operator{Name: "ann", Reason: "the order was a test"}))
	backlog, err := publisher.Backlog(ctx, outbox.BacklogOptions{})
	check(err)
	fmt.Println("to be sent:", backlog.Unsent())
	// Output:
	// outbox: relay: message "order-1" to topic "orders" is parked: no queue takes messages to orders
	// order-1 after 1 attempt: no queue takes messages to orders
	// order-2 after 1 attempt: no queue takes messages to orders
	// to be sent: 1
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
