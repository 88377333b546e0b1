// Package tests_test follows messages through all parts of Millrace at once.
package tests_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A request stores an order; the order, and the invoice that its handler makes, go through
// outbox, relay, RabbitMQ and inbox, and RabbitMQ gets each of them twice. All of it is one
// trace, the one that docs/tracing.md shows.
func TestOneTraceFromTheRequestToTheLastHandler(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.serve()
		root := s.request()
		s.spans(10)

		for _, span := range s.kept.GetSpans() {
			assert.Equal(t, root, span.SpanContext.TraceID(), span.Name)
		}
		got := s.tree()
		assert.Equal(t, figure(t), got)
		assert.NotContains(t, got, secret)
	}))
}

const secret = "the payload"

// figure returns the figure in the document.
func figure(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/tracing.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "```\nPOST /orders")
	require.True(t, found, "docs/tracing.md has no figure")
	figure, _, _ := strings.Cut("POST /orders"+rest, "```")
	return figure
}

// shop is a service that takes orders and writes invoices.
type shop struct {
	*bed
	out    message.Publisher
	broker amqp.Config
}

func newShop(t *testing.T, db *testdb.DB) *shop {
	t.Helper()
	s := &shop{bed: newBed(t, db)}
	out := rig.NewOutbox(t, db.DB, outbox.Config{})
	s.out = s.Publisher(out)
	url := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if url == "" {
		testdb.Missing(t, "RabbitMQ", `set MILLRACE_TEST_RABBITMQ, or: eval "$(tests/services.sh)"`)
	}
	s.broker = rabbitmq.NewQueueConfig(url, rabbitmq.Queues{})
	suffix := "-" + watermill.NewShortUUID()
	s.broker.Queue.GenerateName = func(topic string) string { return topic + suffix }
	s.broker.Publish.GenerateRoutingKey = s.broker.Queue.GenerateName
	require.NoError(t, rabbitmq.Declare(s.broker, "orders", "invoices"))
	t.Cleanup(func() { s.deleteQueues(url) })
	return s
}

func (s *shop) deleteQueues(url string) {
	conn, err := amqp091.Dial(url)
	require.NoError(s, err)
	ch, err := conn.Channel()
	require.NoError(s, err)
	for _, topic := range []string{"orders", "invoices"} {
		_, err := ch.QueueDelete(s.broker.Queue.GenerateName(topic), false, false, false)
		assert.NoError(s, err)
	}
	assert.NoError(s, conn.Close())
}

// serve runs a relay and the handlers.
func (s *shop) serve() {
	s.Helper()
	broker, err := rabbitmq.NewPublisher(s.broker, rabbitmq.PublisherConfig{})
	require.NoError(s, err)
	relay, err := outbox.NewRelay(s.db.DB, s.Sender(twice{broker}), outbox.RelayConfig{
		Poll: 20 * time.Millisecond, Observers: []outbox.Observer{s.RelayObserver()},
	})
	require.NoError(s, err)
	router := s.router(millrace.Inbox{Store: s.store, Outbox: s.out}.Middleware)
	router.AddHandler("billing", "orders", s.subscriber(), "invoices", s.out, bill)
	router.AddConsumerHandler("mail", "invoices", s.subscriber(), effect)
	s.run(router)

	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	relayed := make(chan error, 1)
	go func() { relayed <- relay.Run(ctx) }()
	s.Cleanup(func() {
		stop()
		assert.NoError(s, <-relayed)
		assert.NoError(s, broker.Close())
	})
}

func (s *shop) subscriber() message.Subscriber {
	s.Helper()
	sub, err := rabbitmq.NewSubscriber(s.broker, rabbitmq.SubscriberConfig{})
	require.NoError(s, err)
	s.Cleanup(func() { assert.NoError(s, sub.Close()) })
	return sub
}

// twice sends each message twice, as a relay does that dies before it could write down that
// the broker has it.
type twice struct{ message.Publisher }

func (p twice) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.Publisher.Publish(topic, msgs...), p.Publisher.Publish(topic, msgs...))
}

func bill(msg *message.Message) ([]*message.Message, error) {
	invoice := message.NewMessage("invoice-of-"+msg.UUID, []byte(secret))
	return []*message.Message{invoice}, effect(msg)
}

// request places an order, as a client that traces too, and returns its trace.
func (s *shop) request() trace.TraceID {
	s.Helper()
	server := httptest.NewServer(http.HandlerFunc(s.takeOrder))
	s.Cleanup(server.Close)
	ctx, span := s.service.Start(s.Context(), "POST /orders", trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("7"))
	require.NoError(s, err)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(request.Header))
	response, err := server.Client().Do(request)
	require.NoError(s, err)
	require.NoError(s, response.Body.Close())
	require.Equal(s, http.StatusOK, response.StatusCode)
	return span.SpanContext().TraceID()
}

func (s *shop) takeOrder(w http.ResponseWriter, r *http.Request) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := s.service.Start(ctx, "take an order", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	id, err := io.ReadAll(r.Body)
	if err == nil {
		err = outbox.InTx(ctx, s.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
			order := message.NewMessageWithContext(ctx, string(id), []byte(secret))
			return s.out.Publish("orders", order)
		})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
