package pgxdb_test

import (
	"context"
	"fmt"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pgxdb"
)

// An analytics table gets the rows of a batch by COPY, and counters are kept with one statement.
func ExampleTx_batch() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("MILLRACE_EXAMPLE_POSTGRES"))
	check(err)
	defer pool.Close()
	store, err := inbox.NewStore(pgxdb.OpenPool(pool), inbox.Config{})
	check(err)
	defer func() { check(store.Close(ctx)) }()
	check(store.Migrate(ctx))

	batch := middleware.Batch{Inbox: middleware.Inbox{Store: store, Consumer: "visits"}}
	handle := batch.ConsumerHandler(func(ctx context.Context, msgs []*message.Message) error {
		tx, err := pgxdb.Tx(ctx)
		if err != nil {
			return err
		}
		rows, pages := [][]any{}, []string{}
		for _, msg := range msgs {
			rows, pages = append(rows, []any{msg.UUID, string(msg.Payload)}), append(pages, string(msg.Payload))
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"visits"}, []string{"id", "page"}, pgx.CopyFromRows(rows)); err != nil {
			return err
		}
		// Grouped, since an upsert may meet a row once; sorted, since two batches could deadlock.
		_, err = tx.Exec(ctx, `
			INSERT INTO pages (page, visits)
			SELECT page, count(*) FROM unnest($1::text[]) AS page GROUP BY page ORDER BY page
			ON CONFLICT (page) DO UPDATE SET visits = pages.visits + excluded.visits`, pages)
		return err
	})

	answers := make(chan error)
	for i := range 30 {
		msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "/page/%d", i%3))
		go func() { answers <- handle(msg) }()
	}
	for range 30 {
		check(<-answers)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
