package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

// twice is a broker that delivers each message twice.
type twice struct{ message.Publisher }

func (t twice) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if err := t.Publisher.Publish(topic, msg.Copy(), msg.Copy()); err != nil {
			return err
		}
	}
	return nil
}

// shop carries out a saga: it reserves a piece for each order, charges the customer, and gives the
// piece back where the card is refused. Each step is a handler; what it writes and what it sends to
// the next step are one transaction.
type shop struct {
	out    *outbox.Publisher
	failed sync.Map // steps that have failed once
	ids    sync.Map // of what was sent, by its topic and order
}

func (s *shop) reserve(ctx context.Context, tx *sqlx.Tx, order string) error {
	if _, err := tx.ExecContext(ctx, `UPDATE stock SET pieces = pieces - 1`); err != nil {
		return err
	}
	return s.send(ctx, "reserved", order)
}

func (s *shop) charge(ctx context.Context, tx *sqlx.Tx, order string) error {
	if order == "order-2" {
		return s.send(ctx, "refused", order)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES (?)`, order); err != nil {
		return err
	}
	return s.send(ctx, "ended", order+" is paid")
}

func (s *shop) release(ctx context.Context, tx *sqlx.Tx, order string) error { // compensates reserve
	if _, err := tx.ExecContext(ctx, `UPDATE stock SET pieces = pieces + 1`); err != nil {
		return err
	}
	return s.send(ctx, "ended", order+" is cancelled")
}

// send stores the next message. Its id is made of the message that is handled, so it is the same in
// each attempt.
func (s *shop) send(ctx context.Context, topic, payload string) error {
	id, err := inbox.ID(ctx, topic)
	if err != nil {
		return err
	}
	if first, again := s.ids.LoadOrStore(topic+payload, id); again && first != id {
		fmt.Println("another id for", payload)
	}
	msg := message.NewMessage(id, []byte(payload))
	msg.SetContext(ctx)
	return s.out.Publish(topic, msg)
}

// handler runs a step in the inbox's transaction, and fails after the first run of each order.
func (s *shop) handler(name string, step func(context.Context, *sqlx.Tx, string) error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		if err := step(msg.Context(), tx, string(msg.Payload)); err != nil {
			return err
		}
		if _, again := s.failed.LoadOrStore(name+msg.UUID, true); !again {
			return errors.New("the process stumbles after the work of the step")
		}
		return nil
	}
}

// A saga of three steps, with a broker that delivers each message twice and steps that fail once
// each: every step takes effect once.
func Example_saga() {
	db, out, done := exampleOutbox(outbox.Config{Standalone: true}, `CREATE TABLE stock (pieces INTEGER)`,
		`INSERT INTO stock VALUES (5)`, `CREATE TABLE payments (order_id TEXT)`)
	defer done()
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(context.Background()))
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	relay, err := outbox.NewRelay(db, twice{broker}, outbox.RelayConfig{})
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(middleware.Retry{MaxRetries: 2}.Middleware)
	millrace.Inbox{Store: store}.AddTo(router)
	s := &shop{out: out}
	router.AddConsumerHandler("stock", "orders", broker, s.handler("reserve", s.reserve))
	router.AddConsumerHandler("payment", "reserved", broker, s.handler("charge", s.charge))
	router.AddConsumerHandler("stock-release", "refused", broker, s.handler("release", s.release))
	ended, err := broker.Subscribe(context.Background(), "ended")
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- router.Run(ctx) }()
	<-router.Running()
	go func() { stopped <- relay.Run(ctx) }()

	check(out.Publish("orders", message.NewMessage("id-1", []byte("order-1")), message.NewMessage("id-2", []byte("order-2"))))
	ends := map[string]bool{}
	for range 4 { // two orders, each told of twice
		msg := <-ended
		ends[string(msg.Payload)] = true
		msg.Ack()
	}
	stop()
	check(errors.Join(<-stopped, <-stopped, store.Close(context.Background())))

	var pieces, payments int
	check(db.Get(&pieces, `SELECT pieces FROM stock`))
	check(db.Get(&payments, `SELECT COUNT(*) FROM payments`))
	fmt.Println(slices.Sorted(maps.Keys(ends)))
	fmt.Println("pieces:", pieces, "payments:", payments)
	// Output:
	// [order-1 is paid order-2 is cancelled]
	// pieces: 4 payments: 1
}
