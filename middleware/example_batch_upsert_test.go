package middleware_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// sale is the payload of a message.
type sale struct {
	SKU   string `db:"sku" json:"sku"`
	Items int    `db:"items" json:"items"`
}

// The statement of addSales. sqlx repeats the list after VALUES for each row.
const (
	upsert      = `INSERT INTO sold (sku, items) VALUES (:sku, :items) ON CONFLICT (sku) DO UPDATE SET items = sold.items + excluded.items`
	upsertMySQL = `INSERT INTO sold (sku, items) VALUES (:sku, :items) ON DUPLICATE KEY UPDATE items = items + VALUES(items)`
)

// addSales adds the sales of a batch to the table, with one statement.
func addSales(ctx context.Context, msgs []*message.Message) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	sums := map[string]int{} // a row may be in a statement once
	for _, msg := range msgs {
		var s sale
		if err := json.Unmarshal(msg.Payload, &s); err != nil {
			return millrace.Failed(msg, err)
		}
		sums[s.SKU] += s.Items
	}
	var rows []sale // in one order in every process, or two batches could deadlock
	for _, sku := range slices.Sorted(maps.Keys(sums)) {
		rows = append(rows, sale{sku, sums[sku]})
	}
	query := upsert
	if tx.DriverName() == "mysql" {
		query = upsertMySQL
	}
	_, err = tx.NamedExecContext(ctx, query, rows)
	return err
}

// A read model is kept with one upsert for all messages of a batch.
func ExampleBatch_upsert() {
	db, store, done := exampleStore(`CREATE TABLE sold (sku TEXT PRIMARY KEY, items INTEGER NOT NULL)`)
	defer done()
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store, Consumer: "sold"}}
	handle := batch.ConsumerHandler(addSales)

	messages := make(chan error)
	for i := range 30 {
		msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"sku": "cup %d", "items": 2}`, i%3))
		go func() { messages <- handle(msg) }()
	}
	for range 30 {
		check(<-messages)
	}
	var rows []sale
	check(db.Select(&rows, `SELECT sku, items FROM sold ORDER BY sku`))
	fmt.Println(rows)
	// Output: [{cup 0 20} {cup 1 20} {cup 2 20}]
}
