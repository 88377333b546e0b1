// Package stuck is a service whose messages get stuck, behind a dashboard: what the tests of
// the dashboard look at, with and without a browser.
package stuck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Prefix is where the dashboard is mounted: everything must work below one.
const Prefix = "/admin/messages"

// Operator is who acts.
const Operator = "ada"

// Service handles orders, of which some fail until it is mended.
type Service struct {
	*testing.T
	DB     *testdb.DB
	Store  *inbox.Store
	Outbox *outbox.Publisher
	Log    *rig.Events
	Mended atomic.Bool
	Idle   bool // its routers do no background work; the Store needs WithoutPlugin
}

// New returns a Service without a consumer; see [Service.Serve]. Its Store may have a Config.
func New(t *testing.T, db *testdb.DB, config ...inbox.Config) *Service {
	t.Helper()
	s := &Service{T: t, DB: db, Log: &rig.Events{}}
	var err error
	s.Store, err = inbox.NewStore(db.DB, append(config, inbox.Config{})[0])
	require.NoError(t, err)
	require.NoError(t, s.Store.Migrate(t.Context()))
	s.Outbox, err = outbox.NewPublisher(db.DB, outbox.Config{Standalone: true})
	require.NoError(t, err)
	return s
}

// Dashboard returns one of the service, mounted at [Prefix].
func (s *Service) Dashboard(change ...func(*dashboard.Config)) http.Handler {
	s.Helper()
	config := dashboard.Config{Outbox: s.Outbox, Operator: func(*http.Request) string { return Operator }, Logger: s.Log}
	for _, c := range change {
		c(&config)
	}
	h, err := dashboard.New(s.Store, config)
	require.NoError(s, err)
	mux := http.NewServeMux()
	mux.Handle(Prefix+"/", h)
	return mux
}

// lasting is a publisher of several routers, which one that is closed leaves open.
type lasting struct{ message.Publisher }

func (lasting) Close() error { return nil }

// Serve has a consumer handle what is stored for it, until stop is called or the test ends. Each
// message has one attempt.
func (s *Service) Serve(consumer string, middlewares ...message.HandlerMiddleware) (stop func() error) {
	s.Helper()
	durable := pubsub.Durable{
		Store: s.Store, Consumer: consumer, Mode: pubsub.StoreFirst, MaxAttempts: 1, Poll: 50 * time.Millisecond,
	}
	sub, err := durable.Decorate(rig.NewFeed())
	require.NoError(s, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: rig.Patience}, watermill.NopLogger{})
	require.NoError(s, err)
	if !s.Idle {
		router.AddPlugin(s.Store.Plugin())
	}
	router.AddMiddleware(millrace.Inbox{Store: s.Store, Outbox: s.Outbox}.Middleware)
	router.AddMiddleware(middlewares...)
	router.AddHandler(consumer, "orders", sub, "invoices", lasting{s.Outbox}, s.handle)
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(s.Context())) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		require.NoError(s, err, "the router did not start")
	}
	s.Cleanup(func() { _ = router.Close() })
	return router.Close
}

// handle fails with what the message says in its field "fails", and keeps as its result what
// it says in "keeps".
func (s *Service) handle(msg *message.Message) ([]*message.Message, error) {
	if _, err := inbox.Tx(msg.Context()); err != nil {
		return nil, err
	}
	if text := msg.Metadata.Get("fails"); text != "" && !s.Mended.Load() {
		return nil, inbox.Terminal(errors.New(text))
	}
	if text := msg.Metadata.Get("keeps"); text != "" {
		if err := inbox.SetResult(msg.Context(), map[string]string{"kept": text}); err != nil {
			return nil, err
		}
	}
	return []*message.Message{message.NewMessage("invoice-of-"+msg.UUID, []byte("{}"))}, nil
}

// Put stores messages for a consumer, as its subscriber would.
func (s *Service) Put(consumer string, msgs ...*message.Message) {
	s.Helper()
	queue, err := s.Store.Queue(inbox.QueueConfig{Consumer: consumer})
	require.NoError(s, err)
	require.NoError(s, queue.Put(s.Context(), "orders", msgs...))
}

// Order is a message whose handler fails with that text, if there is one.
func Order(n int, fails string) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("order-%04d", n),
		fmt.Appendf(nil, `{"order":%d,"customer":"c-%d","lines":[{"sku":"A-7","pieces":2}]}`, n, n%7))
	msg.Metadata.Set("name", "OrderPlaced")
	msg.Metadata.Set("correlation_id", fmt.Sprintf("7f3c-%04d", n))
	if fails != "" {
		msg.Metadata.Set("fails", fails)
	}
	return msg
}

// Count runs a query for a number.
func (s *Service) Count(query string, args ...any) (n int) {
	s.Helper()
	require.NoError(s, s.DB.GetContext(s.Context(), &n, s.DB.Rebind(query), args...))
	return n
}

// Await waits until a query gives n, and from anew whenever it comes closer than ever.
func (s *Service) Await(n int, query string, args ...any) {
	s.Helper()
	for left := math.MaxInt; left > 0; {
		rig.Eventually(s.T, fmt.Sprintf("%s gives %d", query, n), func() bool {
			before, got := left, s.Count(query, args...)
			left = min(left, max(n-got, got-n))
			return left < before
		})
	}
}

// AwaitStuck waits until n messages, and no other, are open, each waiting for an operator.
func (s *Service) AwaitStuck(n int) {
	s.Helper()
	s.Await(n, `SELECT COUNT(*) FROM millrace_messages`)
	s.Await(n, `SELECT COUNT(*) FROM millrace_messages WHERE status IN (5, 6)`)
}

// Audited counts what was done, with this reason.
func (s *Service) Audited(action, reason string) int {
	s.Helper()
	return s.Count(`SELECT COALESCE(SUM(COALESCE(messages, 1)), 0) FROM millrace_audit WHERE action = ? AND actor = ? AND reason = ?`,
		[]byte(action), []byte(Operator), []byte(reason))
}
