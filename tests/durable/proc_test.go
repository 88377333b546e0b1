package durable_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// seconds are tests that take seconds and stand beside bodies that run every day: some have their turn each day.
var seconds = []string{
	"TestUniversalSuite", "TestDatabaseRestartsUnderLoad", "TestMessageThatEndsTheProcess",
	"TestFailuresAtOnceDoNotMeet", "TestFrozenBeyondTheLease", "TestKilledAtEveryBoundary", "TestNackStorm",
	"TestFrozenBeyondTheLeaseWithoutInbox", "TestFourProcesses", "TestManyLeftOver",
}

func TestMain(m *testing.M) {
	process.As(durableName, serve)
	testdb.Overlap(6)
	m.Run()
}

// served is what a process is started with that works on a durable queue.
type served struct {
	Name        string // kept with its effects
	Driver, DSN string

	Mode        pubsub.Mode
	Bare        bool // without middleware.Inbox
	Ordered     bool // by the field key
	Concurrency int
	Lease       time.Duration
	Timeout     time.Duration // of the inbox
	TwinWait    time.Duration
	MaxAttempts int
	Backoff     time.Duration // the shortest and the longest

	Produce int    // how many messages the handler returns
	Deaf    bool   // nothing can be published
	Marks   string // a folder that the processes share: it tells a first run from later ones
	Weigh   int    // the heap is told of after each so many runs; then single runs are not

	// Where messages come from: a queue of RabbitMQ, lanes, or else the test.
	Queue  string
	Lanes  int
	Length int
}

// durableName is its name among the programs that the test binary can be.
const durableName = "DURABLE"

// Kinds of events beside those of package process.
const (
	ran      = "ran"      // the handler was called; the counts tell how often it was tried before
	running  = "running"  // the router runs
	returned = "returned" // the router got the answer of the handler and its middlewares
	weighed  = "weighed"  // the counts tell the heap, in bytes
	drained  = "drained"  // the lanes are empty
	undone   = "undone"   // among the counts at the end: how often a deadlock undid something
)

// servedProcess is a process that was started to be one.
type servedProcess struct {
	*process.Child
	served
	pool *faults.Faults
	feed *rig.Feed
	goOn chan struct{}
	runs runs

	undone atomic.Int64

	mu     sync.Mutex
	armed  process.Point
	victim string
	handed map[string]*message.Message // the last copy of each
	kinds  map[any][]kind              // of the transaction on each connection
}

func serve(c *process.Child, s served) error {
	p := &servedProcess{
		Child: c, served: s, feed: rig.NewFeed(), goOn: make(chan struct{}),
		handed: map[string]*message.Message{}, kinds: map[any][]kind{},
	}
	plain, err := sqlx.Open(p.Driver, p.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }() // it lent its driver only
	p.pool = faults.Over(plain, p.DSN)
	p.pool.SetMaxOpenConns(12)
	p.pool.SetMaxIdleConns(12)
	p.pool.Set(faults.Plan{Before: p.before, After: p.after})
	store, err := inbox.NewStore(p.pool.DB, inbox.Config{
		Logger: watermill.NewStdLoggerWithOut(os.Stderr, false, false), Observers: []inbox.Observer{inbox.On(p.observe, inbox.KindContention, inbox.KindFailed)},
	})
	if err != nil {
		return err
	}
	router, err := p.router(store)
	if err != nil {
		return err
	}
	p.Say(process.Event{Kind: process.Ready})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running() // one that is closed before it runs does not end
	p.Say(process.Event{Kind: running})
	for closing := false; !closing; {
		if closing, err = p.obey(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	err = errors.Join(router.Close(), <-ended, store.Close(ctx))
	_ = p.pool.Close() // go-sql-driver returns that the network cut an idle connection
	p.Closed(err, map[string]int{ran: p.runs.all(), undone: int(p.undone.Load())})
	return nil
}

// observe counts what a deadlock undid: the server's choice, which a run that is made again makes
// good. What the test is told of it, and of a run that failed, goes to standard error.
func (p *servedProcess) observe(_ context.Context, e inbox.Event) {
	if e.Kind == inbox.KindContention {
		p.undone.Add(1)
	}
	fmt.Fprintln(os.Stderr, e.Kind, e.MessageID, e.Reason, e.Err)
}

// obey follows one order of the test. A test that is gone ends the process, too.
func (p *servedProcess) obey() (closing bool, err error) {
	order, err := p.Order()
	switch {
	case err != nil || order.Do == process.ToClose:
		return true, err
	case order.Do == process.ToDeliver:
		p.deliver(order.Delivery)
	default: // to go on
		p.goOn <- struct{}{}
	}
	return false, nil
}

func (p *servedProcess) router(store *inbox.Store) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: rig.Patience}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	upstream, err := p.upstream()
	if err != nil {
		return nil, err
	}
	durable := pubsub.Durable{
		Store: store, Consumer: consumer, Mode: p.Mode, Concurrency: p.Concurrency, Lease: p.Lease,
		MaxAttempts: p.MaxAttempts, MinBackoff: p.Backoff, MaxBackoff: p.Backoff, Poll: 50 * time.Millisecond,
	}
	if p.Ordered {
		durable.OrderKey = func(msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil }
	}
	sub, err := durable.Decorate(upstream)
	if err != nil {
		return nil, err
	}
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(p.know)
	if !p.Bare {
		router.AddMiddleware(millrace.Inbox{Store: store, Timeout: p.Timeout, Options: inbox.Options{TwinWait: p.TwinWait}}.Middleware)
	}
	if p.Produce > 0 {
		router.AddHandler(consumer, "orders", sub, "invoices", told{p}, p.handle)
	} else {
		router.AddConsumerHandler(consumer, "orders", sub, func(msg *message.Message) error {
			_, err := p.handle(msg)
			return err
		})
	}
	return router, nil
}

func (p *servedProcess) upstream() (message.Subscriber, error) {
	switch {
	case p.Queue != "":
		broker := rabbitmq.NewQueueConfig(os.Getenv("MILLRACE_TEST_RABBITMQ"), rabbitmq.Queues{})
		broker.Queue.GenerateName = func(string) string { return p.Queue }
		return rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: p.Concurrency})
	case p.Lanes > 0:
		return lanes{p}, nil
	}
	return p.feed, nil
}

// launch starts a process, which is killed when its test ends.
func (s served) launch(t *testing.T) *process.Process {
	t.Helper()
	return process.Self(t, durableName, s)
}

// newServed returns a bed with a table of works, and settings of a process that has its database.
func newServed(t *testing.T, db *testdb.DB, opts ...testdb.Option) (*bed, served) {
	t.Helper()
	b := newBed(t, tuned(t, db))
	b.createWorks()
	return b, b.served(opts...)
}

// served returns settings of a process that has the database of b.
func (b *bed) served(opts ...testdb.Option) served {
	b.Helper()
	db := b.db
	if len(opts) > 0 {
		db = b.db.Open(b, opts...)
	}
	return served{
		Driver: db.Driver, DSN: db.DSN, Concurrency: 10, Lease: time.Second, Backoff: time.Millisecond, MaxAttempts: 10,
	}
}
