package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// payments stores each payment in the outbox, and books it when RabbitMQ delivers it.
func payments(ctx context.Context, db *sqlx.DB) error {
	t, err := newTelemetry(ctx, "payments")
	if err != nil {
		return err
	}
	store, err := inbox.NewStore(db, inbox.Config{
		Logger: watermill.NewSlogLogger(slog.Default()), Observers: []inbox.Observer{t.metrics.Inbox(), t.tracer.InboxObserver()},
	})
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `
		CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, paid BIGINT NOT NULL);
		INSERT INTO account VALUES ('ann', 0), ('bob', 0), ('cyd', 0) ON CONFLICT DO NOTHING`); err != nil {
		return err
	}
	stored, err := outbox.NewPublisher(db, outbox.Config{})
	if err != nil {
		return err
	}
	if err := errors.Join(t.metrics.WatchStore(store), t.metrics.WatchOutbox(stored)); err != nil {
		return err
	}
	out := t.tracer.Publisher(stored)
	router, err := consume(store, out, t)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return router.Run(ctx) })
	group.Go(func() error {
		select {
		case <-router.Running(): // nothing is taken before the queue is there
			return serve(ctx, t.with("POST /pay", pay(db, out)))
		case <-ctx.Done():
			return nil
		}
	})
	return errors.Join(group.Wait(), closed(ctx, store), t.stop(ctx))
}

// consume handles payments from RabbitMQ, and stores those that fail.
func consume(store *inbox.Store, out message.Publisher, t *telemetry) (*message.Router, error) {
	broker, err := rabbitmq.NewSubscriber(queues(), rabbitmq.SubscriberConfig{InFlight: 16})
	if err != nil {
		return nil, err
	}
	sub, err := pubsub.Durable{Store: store, Consumer: "accounts", MaxAttempts: 3}.Decorate(broker)
	if err != nil {
		return nil, err
	}
	// Without a Durable a database that is away for a minute would use up the delivery limit of the queue.
	receipts, err := pubsub.Durable{Store: store, Consumer: "mail"}.Decorate(broker)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(t.tracer.Middleware)
	millrace.Inbox{Store: store, Outbox: out}.AddTo(router)
	router.AddHandler("accounts", "payments", sub, "receipts", out, book)
	router.AddConsumerHandler("mail", "receipts", receipts, func(msg *message.Message) error {
		slog.Info("receipt", "account", string(msg.Payload))
		return nil
	})
	return router, nil
}

// book knows three accounts.
func book(msg *message.Message) ([]*message.Message, error) {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return nil, err
	}
	result, err := tx.ExecContext(msg.Context(), `UPDATE account SET paid = paid + 1 WHERE name = $1`, string(msg.Payload))
	if err != nil {
		return nil, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return nil, errors.Join(err, fmt.Errorf("there is no account %q", msg.Payload))
	}
	return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
}

// pay stores a payment: POST /pay?account=NAME&id=ID. Who repeats a payment gives it the same id.
func pay(db *sqlx.DB, out message.Publisher) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("id")
		if id == "" {
			http.Error(w, "the id is missing", http.StatusBadRequest)
			return
		}
		err := outbox.InTx(r.Context(), db, func(ctx context.Context, _ *sqlx.Tx) error {
			return out.Publish("payments", message.NewMessageWithContext(ctx, id, []byte(r.FormValue("account"))))
		})
		if err != nil {
			slog.Error("pay", "error", err)
			http.Error(w, "try again, with the same id", http.StatusServiceUnavailable)
		}
	}
}

// pages serves the dashboard. Whoever reaches it may use it: in production, put your authentication in front.
func pages(ctx context.Context, db *sqlx.DB) error {
	store, err := inbox.NewStore(db, inbox.Config{})
	if err != nil {
		return err
	}
	out, err := outbox.NewPublisher(db, outbox.Config{})
	if err != nil {
		return err
	}
	h, err := dashboard.New(store, dashboard.Config{
		Prefix: "/", Outbox: out, Operator: func(*http.Request) string { return "on call" },
	})
	if err != nil {
		return err
	}
	return errors.Join(serve(ctx, h), closed(ctx, store))
}

// closed closes the store. A handler that hangs does not keep the process from ending.
func closed(ctx context.Context, store *inbox.Store) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return store.Close(ctx)
}
