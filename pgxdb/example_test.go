package pgxdb_test

import (
	"context"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
)

// With the driver's name, nothing else changes.
func Example() {
	dsn := "postgres://service@localhost/service"
	db, err := sqlx.Open("pgxdb", dsn) // instead of sqlx.Open("pgx", dsn)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
}

// A service that uses pgx alone shares its pool with Millrace, and copies rows in the transaction of its handler.
func ExampleTx() {
	pool, err := pgxpool.New(context.Background(), "postgres://service@localhost/service")
	if err != nil {
		log.Fatal(err)
	}
	store, err := inbox.NewStore(pgxdb.OpenPool(pool), inbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	router := message.NewDefaultRouter(watermill.NewSlogLogger(nil))
	middleware.Inbox{Store: store}.AddTo(router)
	handler := func(msg *message.Message) error {
		tx, err := pgxdb.Tx(msg.Context())
		if err != nil {
			return err
		}
		rows := [][]any{{msg.UUID, 1}, {msg.UUID, 2}}
		_, err = tx.CopyFrom(msg.Context(), pgx.Identifier{"lines"}, []string{"message", "line"}, pgx.CopyFromRows(rows))
		return err
	}
	_ = handler // router.AddConsumerHandler("billing", "orders", subscriber, handler)
}

// A transaction that the service began with pgx carries messages too.
func ExampleForOutbox() {
	place := func(ctx context.Context, pool *pgxpool.Pool, out *outbox.Publisher) error {
		defer out.Wake() // after the commit
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders DEFAULT VALUES`); err != nil {
				return err
			}
			ctx := outbox.WithTx(ctx, pgxdb.ForOutbox(tx))
			return out.Publish("orders", message.NewMessageWithContext(ctx, watermill.NewUUID(), nil))
		})
	}
	_ = place
}
