package admin_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// A service that kept a table of processed messages by itself has a consumer know them. A
// late copy of one is then acked without the handler.
func ExampleAdmin_Import() {
	ctx := context.Background()
	db, store, done := exampleStore(inbox.Config{})
	defer done()
	db.MustExec(`CREATE TABLE processed (message_id TEXT PRIMARY KEY, at INTEGER)`)
	db.MustExec(`INSERT INTO processed VALUES ('payment-1', ?)`, time.Now().Add(-time.Hour).Unix())

	processed := func(yield func(admin.Imported, error) bool) {
		rows, err := db.QueryxContext(ctx, `SELECT message_id, at FROM processed`) //nolint:sqlclosecheck // it is closed below
		if err != nil {
			yield(admin.Imported{}, err)
			return
		}
		defer rows.Close() //nolint:errcheck // rows.Err tells
		for rows.Next() {
			var id string
			var at int64
			err := rows.Scan(&id, &at)
			if !yield(admin.Imported{Key: []string{id}, ProcessedAt: time.Unix(at, 0)}, err) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(admin.Imported{}, err)
		}
	}
	by := admin.Operator{Name: "ann", Reason: "the inbox takes the place of our table"}
	report, err := admin.New(store).Import(ctx, inbox.ConsumerConfig{Name: "accounts"}, processed, by, admin.Pace{})
	check(err)
	fmt.Println("new:", report.New)

	publisher, stop := exampleRouter(store, func(msg *message.Message) error {
		fmt.Printf("handled %s\n", msg.UUID)
		_, err := inbox.Tx(msg.Context())
		return err
	})
	defer stop()
	check(publisher.Publish("payments", message.NewMessage("payment-1", []byte("10 EUR"))))
	check(publisher.Publish("payments", message.NewMessage("payment-2", []byte("5 EUR"))))
	// Output:
	// new: 1
	// handled payment-2
}
