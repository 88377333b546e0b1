package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
)

const (
	transfers = "transfers" // the topic in RabbitMQ
	receipts  = "receipts"  // the topic in the database
	bulk      = "bulk"      // the same transfers in RabbitMQ, for batches
	accounts  = 20
)

// timeout bounds handlers, and how long a member that froze keeps what it has locked.
const timeout = 4 * time.Second

// transfer is the payload of both topics.
type transfer struct {
	ID      string
	Account int
	Version int64
	Amount  int
}

// service is what a member runs.
type service struct {
	membership
	db     *sqlx.DB
	store  *inbox.Store
	out    *outbox.Publisher
	relay  *outbox.Relay
	router *message.Router
	events rig.Events

	handed, runs, copies, refusals, unreported, batches, batched atomic.Int64
}

func newService(m membership) (s *service, err error) {
	s = &service{membership: m}
	if s.db, err = sqlx.Open(m.Driver, m.DSN); err != nil {
		return nil, err
	}
	s.db.SetMaxOpenConns(20)
	s.db.SetMaxIdleConns(20)
	logger := watermill.NewStdLoggerWithOut(os.Stderr, false, false)
	s.store, err = inbox.NewStore(s.db, inbox.Config{Logger: logger, Observers: []inbox.Observer{&s.events}})
	if err != nil {
		return nil, err
	}
	if s.out, err = outbox.NewPublisher(s.db, outbox.Config{OrderKey: outbox.ByMetadata("ordered")}); err != nil {
		return nil, err
	}
	if err := s.send(logger); err != nil {
		return nil, err
	}
	return s, s.receive(logger)
}

// send makes the relay.
func (s *service) send(logger watermill.LoggerAdapter) error {
	rabbit, err := rabbitmq.NewPublisher(rabbitmq.NewQueueConfig(s.RabbitMQ, rabbitmq.Queues{}),
		rabbitmq.PublisherConfig{Logger: logger, Timeout: timeout})
	if err != nil {
		return err
	}
	table, err := watermillsql.NewPublisher(s.db, watermillsql.Config{Timeout: timeout})
	if err != nil {
		return err
	}
	s.relay, err = outbox.NewRelay(s.db, &broker{service: s, of: map[string]message.Publisher{transfers: rabbit, bulk: rabbit, receipts: table}},
		outbox.RelayConfig{
			Logger: logger, Name: s.Name, Lease: timeout,
			MinBackoff: 100 * time.Millisecond, MaxBackoff: 2 * time.Second, MaxAttempts: 100,
		})
	return err
}

// receive makes the router.
func (s *service) receive(logger watermill.LoggerAdapter) (err error) {
	rabbit, err := s.subscriber(logger, 10)
	if err != nil {
		return err
	}
	many, err := s.subscriber(logger, 60)
	if err != nil {
		return err
	}
	queue, err := pubsub.Durable{
		Store: s.store, Consumer: "apply", Mode: s.Mode, Lease: timeout, Poll: 200 * time.Millisecond,
		MinBackoff: 50 * time.Millisecond, MaxBackoff: time.Second,
	}.Decorate(rabbit)
	if err != nil {
		return err
	}
	table, err := watermillsql.NewSubscriber(s.db, watermillsql.SubscriberConfig{
		ConsumerGroup: "book", BatchSize: 20, Logger: logger, InboxTimeout: timeout, AckDeadline: 2 * timeout,
		PollInterval: 50 * time.Millisecond, ResendInterval: 50 * time.Millisecond, RetryInterval: 200 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 2 * timeout}, logger); err != nil {
		return err
	}
	once := millrace.Inbox{Store: s.store, Outbox: s.out, Timeout: timeout, Options: inbox.Options{TwinWait: time.Second}}
	s.router.AddPlugin(once.Plugin())
	s.router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			s.handed.Add(1)
			return next(msg)
		}
	})
	apply := s.router.AddHandler("apply", transfers, queue, receipts, s.out, s.apply)
	apply.AddMiddleware(once.Middleware, millrace.VersionGate{}.Middleware)
	s.router.AddConsumerHandler("book", receipts, table, s.book).AddMiddleware(once.Middleware)
	batch := millrace.Batch{Inbox: once, Max: 30, Linger: 200 * time.Millisecond}
	s.router.AddConsumerHandler("sum", bulk, many, batch.ConsumerHandler(s.sum))
	return nil
}

func (s *service) subscriber(logger watermill.LoggerAdapter, inFlight int) (*rabbitmq.Subscriber, error) {
	return rabbitmq.NewSubscriber(rabbitmq.NewQueueConfig(s.RabbitMQ, rabbitmq.Queues{}),
		rabbitmq.SubscriberConfig{Logger: logger, InFlight: inFlight, CloseTimeout: timeout})
}

// run serves until ctx ends, or something else does.
func (s *service) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	ended := make(chan error, 2)
	all.Go(func() { ended <- s.router.Run(context.WithoutCancel(ctx)) })
	var err error
	select {
	case err = <-ended:
		return err // it did not start
	case <-s.router.Running(): // a router that is closed before does not end
	}
	all.Go(func() { ended <- s.relay.Run(ctx) })
	if s.Produces {
		all.Go(func() { s.produce(ctx) })
	}
	select {
	case err = <-ended:
		err = errors.Join(errors.New("the service ended by itself"), err)
	case <-ctx.Done():
	}
	cancel()
	err = errors.Join(err, s.router.Close())
	all.Wait()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer stop()
	// What the last statements say of a database that is away is no news.
	_ = errors.Join(s.store.Close(last), s.db.Close())
	return err
}

// counts is what was seen so far, by kind.
func (s *service) counts() map[string]int {
	counts := s.events.Counts()
	for kind, n := range map[string]*atomic.Int64{
		"handed": &s.handed, "run": &s.runs, "copy": &s.copies, "refusal": &s.refusals, "unreported": &s.unreported,
		"batches": &s.batches, "batched": &s.batched,
	} {
		counts[kind] = int(n.Load())
	}
	return counts
}

// produce makes transfers, of which some are rolled back, until ctx ends.
func (s *service) produce(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = s.transfer(ctx) // what was committed is in the ledger, whatever was said of it
		case <-ctx.Done():
			return
		}
	}
}

var errBusiness = errors.New("the business says no")

func (s *service) transfer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return outbox.InTx(ctx, s.db, func(ctx context.Context, tx *sqlx.Tx) error {
		t := transfer{ID: watermill.NewUUID(), Account: rand.IntN(accounts), Amount: rand.IntN(100)}
		if _, err := tx.ExecContext(ctx, tx.Rebind(`UPDATE heads SET version = version + 1 WHERE account = ?`), t.Account); err != nil {
			return err
		}
		if err := tx.GetContext(ctx, &t.Version, tx.Rebind(`SELECT version FROM heads WHERE account = ?`), t.Account); err != nil {
			return err
		}
		if err := s.enter(ctx, tx, "produced", t, ""); err != nil {
			return err
		}
		msg := t.message(t.ID)
		outbox.Stamp(msg, fmt.Sprint(t.Account), t.Version)
		msg.SetContext(ctx)
		again := t.message(watermill.NewUUID())
		again.SetContext(ctx)
		if err := errors.Join(s.out.Publish(transfers, msg), s.out.Publish(bulk, again)); err != nil {
			return err
		}
		if rand.IntN(10) == 0 {
			return errBusiness
		}
		return nil
	})
}

func (t transfer) message(uuid string) *message.Message {
	payload, err := json.Marshal(t)
	if err != nil {
		panic(err) // it has neither channels nor functions
	}
	return message.NewMessage(uuid, payload)
}

// enter makes an entry in a table of the ledger. The tables have no constraints: what is
// wrong is to be seen.
func (s *service) enter(ctx context.Context, tx *sqlx.Tx, table string, t transfer, uuid string) error {
	_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO `+table+` (id, account, version, amount, uuid, member)
		VALUES (?, ?, ?, ?, ?, ?)`), t.ID, t.Account, t.Version, t.Amount, uuid, s.Name)
	return err
}

// apply moves the money, and returns a receipt with a UUID of its own.
func (s *service) apply(msg *message.Message) ([]*message.Message, error) {
	t, err := s.handle(msg, "applied")
	if err != nil {
		return nil, err
	}
	receipt := t.message(watermill.NewUUID())
	receipt.Metadata.Set("ordered", fmt.Sprint(t.Account))
	return []*message.Message{receipt}, nil
}

// book books a receipt.
func (s *service) book(msg *message.Message) error {
	_, err := s.handle(msg, "booked")
	return err
}

// faulty returns err if handlers are to fail.
func (s *service) faulty(err error) error {
	if !s.Faulty {
		return nil
	}
	return err
}

// handle enters a transfer, and fails now and then.
func (s *service) handle(msg *message.Message, table string) (t transfer, err error) {
	s.runs.Add(1)
	if err := json.Unmarshal(msg.Payload, &t); err != nil {
		return t, inbox.Terminal(err)
	}
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return t, err
	}
	if err := s.enter(ctx, tx, table, t, msg.UUID); err != nil {
		return t, err
	}
	_, err = tx.ExecContext(ctx, tx.Rebind(`UPDATE balances SET `+table+` = `+table+` + ? WHERE account = ?`), t.Amount, t.Account)
	if err == nil && rand.IntN(30) == 0 {
		err = s.faulty(errBusiness)
	}
	return t, err
}

// broker publishes to both, and now and then does not, or twice, or says that it did not.
type broker struct {
	*service
	of map[string]message.Publisher
}

// Publish publishes msgs.
func (b *broker) Publish(topic string, msgs ...*message.Message) error {
	to := b.of[topic]
	if !b.Faulty {
		return to.Publish(topic, msgs...)
	}
	switch rand.IntN(50) {
	case 0:
		b.refusals.Add(1)
		return errors.New("the broker says no")
	case 1:
		if err := to.Publish(topic, msgs...); err != nil {
			return err
		}
		b.unreported.Add(1)
		return errors.New("the broker says no, though it has the message")
	case 2:
		if err := to.Publish(topic, msgs...); err != nil {
			return err
		}
		b.copies.Add(int64(len(msgs)))
	}
	return to.Publish(topic, msgs...)
}

// Close closes both.
func (b *broker) Close() error {
	return errors.Join(b.of[transfers].Close(), b.of[receipts].Close())
}
