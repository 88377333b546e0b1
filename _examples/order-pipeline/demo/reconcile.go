package demo

import (
	"context"
	"errors"
	"fmt"
)

// reconcile prints what went wrong during the day, and then the books of both services,
// which must agree.
func (d *demo) reconcile(ctx context.Context) error {
	for _, row := range []struct {
		what  string
		count int
	}{
		{"orders posted twice", int(d.load.doubled.Load())},
		{"requests sent again", int(d.load.retries.Load())},
		{"copies from the broker", int(d.broker.copies.Load())},
		{"duplicates skipped", d.orders.counted("duplicate") + d.fulfilment.counted("duplicate")},
		{"processes killed", d.orders.counted("killed") + d.fulfilment.counted("killed")},
	} {
		fmt.Printf("%-24s %8d\n", row.what, row.count)
	}
	books, err := d.books(ctx)
	if err != nil {
		return err
	}
	differences := 0
	fmt.Printf("\n%-24s %8s %8s\n", "", "expected", "actual")
	for _, row := range books {
		fmt.Printf("%-24s %8d %8d\n", row.what, row.expected, row.actual)
		if row.actual != row.expected {
			differences++
		}
	}
	if differences > 0 {
		return errors.New("the books do not agree: effects were lost, or happened twice")
	}
	return nil
}

type row struct {
	what             string
	expected, actual int
}

// books are what one service has written down beside what the other has.
func (d *demo) books(ctx context.Context) ([]row, error) {
	_, deadLetters, err := d.broker.waiting()
	ask := func(db *database, query string) (n int) {
		err = errors.Join(err, db.GetContext(ctx, &n, `SELECT COALESCE((`+query+`), 0)`))
		return n
	}
	orders := func(query string) int { return ask(d.ordersDB, query) }
	fulfilment := func(query string) int { return ask(d.stockDB, query) }
	books := []row{
		{"orders placed", placed, orders(`SELECT COUNT(*) FROM orders`)},
		{"keys with two orders", 0, int(d.load.contradictions.Load())},
		{
			"orders decided", orders(`SELECT COUNT(*) FROM orders`),
			fulfilment(`SELECT (SELECT COUNT(*) FROM reservation) + (SELECT COUNT(*) FROM rejection)`),
		},
		{"orders decided twice", 0, fulfilment(`
			SELECT COUNT(*) - COUNT(DISTINCT order_id)
			FROM (SELECT order_id FROM reservation UNION ALL SELECT order_id FROM rejection) AS decision`)},
		{
			"orders rejected", fulfilment(`SELECT COUNT(*) FROM rejection`),
			orders(`SELECT COUNT(*) FROM orders WHERE status = 'rejected'`),
		},
		{
			"goods reserved", orders(`SELECT SUM(quantity) FROM orders WHERE status = 'invoiced'`),
			fulfilment(`SELECT SUM(reserved) FROM stock`),
		},
		{
			"goods left", stocked - fulfilment(`SELECT SUM(quantity) FROM reservation`),
			fulfilment(`SELECT SUM(available) FROM stock`),
		},
		{
			"invoices received", fulfilment(`SELECT COUNT(*) FROM invoice`),
			orders(`SELECT COUNT(*) FROM invoice_received`),
		},
		{"invoices received twice", 0, orders(`SELECT COUNT(*) - COUNT(DISTINCT order_id) FROM invoice_received`)},
		{
			"sum of the invoices", fulfilment(`SELECT SUM(amount) FROM invoice`),
			orders(`SELECT SUM(amount) FROM invoice_received`),
		},
		{"dead letters", 0, deadLetters},
	}
	return books, err
}

// stocked is what fulfilment/schema.sql puts on the shelves.
const stocked = 20 * 40
