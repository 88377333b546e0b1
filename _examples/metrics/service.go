package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

// service books payments, and tells of it.
type service struct {
	db       *sqlx.DB
	store    *inbox.Store
	out      *outbox.Publisher
	relay    *outbox.Relay
	broker   *gochannel.GoChannel
	registry *prometheus.Registry
}

func newService(ctx context.Context, dir string) (*service, error) {
	s := &service{
		registry: prometheus.NewRegistry(),
		broker:   gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100}, watermill.NopLogger{}),
	}
	m, err := metrics.NewBuilder(s.registry, metrics.Config{Interval: time.Second})
	if err != nil {
		return nil, err
	}
	s.db, err = sqlx.Open("sqlite", "file:"+filepath.Join(dir, "payments.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	s.store, err = inbox.NewStore(s.db, inbox.Config{Observers: []inbox.Observer{m.Inbox()}})
	if err != nil {
		return nil, err
	}
	if err := s.store.Migrate(ctx); err != nil {
		return nil, err
	}
	if s.out, err = outbox.NewPublisher(s.db, outbox.Config{}); err != nil {
		return nil, err
	}
	s.relay, err = outbox.NewRelay(s.db, s.broker, outbox.RelayConfig{Observers: []outbox.Observer{m.Relay()}})
	if err != nil {
		return nil, err
	}
	if err := m.WatchStore(s.store); err != nil {
		return nil, err
	}
	return s, m.WatchOutbox(s.out)
}

// router handles payments from a durable queue, behind the inbox.
func (s *service) router() (*message.Router, error) {
	sub, err := pubsub.Durable{
		Store: s.store, Consumer: "accounts", MaxAttempts: 3, MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	}.Decorate(s.broker)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	millrace.Inbox{Store: s.store, Outbox: s.out, Options: inbox.Options{Window: 24 * time.Hour}}.AddTo(router)
	router.AddHandler("accounts", "payments", sub, "receipts", s.broker, book)
	return router, nil
}

// book knows all accounts but one.
func book(msg *message.Message) ([]*message.Message, error) {
	if string(msg.Payload) == "nobody" {
		return nil, fmt.Errorf("there is no account %q", msg.Payload)
	}
	receipt := message.NewMessage(watermill.NewUUID(), msg.Payload)
	return []*message.Message{receipt}, nil
}

// handler serves the metrics, and takes payments: POST /pay?account=NAME.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("POST /pay", func(w http.ResponseWriter, r *http.Request) {
		payment := message.NewMessage(r.FormValue("id"), []byte(r.FormValue("account")))
		if payment.UUID == "" {
			payment.UUID = watermill.NewUUID()
		}
		payment.Metadata.Set("name", "paid")
		if err := s.broker.Publish("payments", payment); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}
