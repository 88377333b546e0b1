package main

import (
	"context"
	"crypto/subtle"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

// service bills orders, ships what is billed, and keeps a list of orders.
type service struct {
	store  *inbox.Store
	out    *outbox.Publisher
	broker *gochannel.GoChannel
	router *message.Router
	relay  *outbox.Relay
	pages  *dashboard.Handler
}

func newService(ctx context.Context, db *sqlx.DB) (s *service, err error) {
	s = &service{broker: gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1000}, watermill.NopLogger{})}
	if s.store, err = inbox.NewStore(db, inbox.Config{}); err != nil {
		return nil, err
	}
	if err = s.store.Migrate(ctx); err != nil {
		return nil, err
	}
	if s.out, err = outbox.NewPublisher(db, outbox.Config{}); err != nil {
		return nil, err
	}
	if s.relay, err = outbox.NewRelay(db, pedant{s.broker}, outbox.RelayConfig{Name: "demo", MaxAttempts: 3}); err != nil {
		return nil, err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}); err != nil {
		return nil, err
	}
	millrace.Inbox{Store: s.store, Outbox: s.out}.AddTo(s.router)
	s.pages, err = dashboard.New(s.store, dashboard.Config{Outbox: s.out, Redeliver: s.broker, Operator: operator})
	return s, err
}

// consume adds a consumer whose messages are stored when they fail.
func (s *service) consume(name, topic string, h message.HandlerFunc, mode pubsub.Mode) (*message.Handler, error) {
	sub, err := pubsub.Durable{
		Store: s.store, Consumer: name, Mode: mode, MaxAttempts: 3, MinBackoff: time.Second, MaxBackoff: 20 * time.Second,
	}.Decorate(s.broker)
	if err != nil {
		return nil, err
	}
	return s.router.AddHandler(name, topic, sub, "invoices", s.out, h), nil
}

// operator is who is signed in: here whoever basic authentication let in.
func operator(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}

// web is the service's own server: the dashboard is one of its paths.
func (s *service) web() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/admin/messages/", requireLogin(s.pages))
	return mux
}

// requireLogin stands in for the authentication that a service has.
func requireLogin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(password), []byte(demoPassword)) == 0 {
			w.Header().Set("WWW-Authenticate", `Basic realm="the demo: any name, password `+demoPassword+`"`)
			http.Error(w, "sign in", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

const demoPassword = "demo"
