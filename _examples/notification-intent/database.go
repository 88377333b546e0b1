package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
)

func open(file string) (*sqlx.DB, error) {
	return sqlx.Open("sqlite", "file:"+file+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
}

// prepare makes the tables, and leaves the orders for the relay to send.
func prepare(ctx context.Context, db *sqlx.DB, orders int) error {
	store, err := inbox.NewStore(db, inbox.Config{})
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`); err != nil {
		return err
	}
	out, err := outbox.NewPublisher(db, outbox.Config{Standalone: true})
	if err != nil {
		return err
	}
	var all []*message.Message
	for n := range orders {
		all = append(all, message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "order %d", n+1)))
	}
	return out.Publish("orders", all...)
}

// recorded counts the mails whose receipt is stored.
func recorded(ctx context.Context, db *sqlx.DB) (n int, err error) {
	return n, db.GetContext(ctx, &n, `SELECT COUNT(*) FROM millrace_steps WHERE state = 2`)
}
