package pubsub_test

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
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

// A payment fails twice, since the bank is away, and is tried again from the table; the
// broker has long forgotten it.
func ExampleDurable() {
	_, store, done := exampleStore()
	defer done()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	sub, err := pubsub.Durable{Store: store, Consumer: "accounts", MinBackoff: time.Millisecond}.Decorate(broker)
	check(err)
	paid := make(chan struct{})
	stop := run(store, sub, func(msg *message.Message) error {
		attempt := inbox.Attempt(msg.Context())
		fmt.Println("attempt", attempt)
		if attempt < 3 {
			return errors.New("the bank is away")
		}
		close(paid)
		return nil
	})
	check(broker.Publish("orders", message.NewMessage("order-1", []byte("10 EUR"))))
	<-paid
	stop()
	// Output:
	// attempt 1
	// attempt 2
	// attempt 3
}

// A message that no attempt would mend goes to a dead-letter topic, in the transaction in
// which it is stored for an operator.
func ExampleDurable_onPark() {
	db, store, done := exampleStore()
	defer done()
	outboxPublisher, err := outbox.NewPublisher(db, outbox.Config{})
	check(err)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	durable := pubsub.Durable{Store: store, Consumer: "accounts"}
	durable.OnPark = func(msg *message.Message, reason string) error {
		msg.Metadata.Set("why", reason)
		return outboxPublisher.Publish("orders.dead", msg)
	}
	sub, err := durable.Decorate(broker)
	check(err)
	stop := run(store, sub, func(*message.Message) error {
		return inbox.Terminal(errors.New("no such account"))
	})
	check(broker.Publish("orders", message.NewMessage("order-1", []byte("10 EUR"))))
	stop()

	var letters []string
	check(db.Select(&letters, `SELECT uuid || ' to ' || topic FROM millrace_outbox`))
	fmt.Println(letters)
	// Output:
	// [order-1 to orders.dead]
}

// A letter of Watermill's PoisonQueue goes back to its topic when the handler is fixed. Watermill's
// requeuer does so by itself, with the same publisher.
func ExampleAsReplay() {
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	letter := message.NewMessage("order-1", []byte("10 EUR"))
	letter.Metadata = message.Metadata{
		"correlation_id": "c-7", middleware.PoisonedTopicKey: "orders", middleware.ReasonForPoisonedKey: "no such account",
	}

	back := pubsub.AsReplay(broker, "the accounts are there now")
	check(back.Publish(letter.Metadata.Get(middleware.PoisonedTopicKey), letter))

	messages, err := broker.Subscribe(context.Background(), "orders")
	check(err)
	msg := <-messages
	fmt.Println(msg.UUID, msg.Metadata)
	msg.Ack()
	// Output:
	// order-1 map[correlation_id:c-7 millrace_replay:the accounts are there now millrace_replay_attempt:1]
}

// run starts a router with one handler, and returns what stops it.
func run(store *inbox.Store, sub message.Subscriber, h message.NoPublishHandlerFunc) (stop func()) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("accounts", "orders", sub, h)
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()
	return func() {
		check(router.Close())
		check(<-stopped)
	}
}

func exampleStore() (*sqlx.DB, *inbox.Store, func()) {
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(context.Background()))
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
