package main

import (
	"context"
	"errors"
	"fmt"
)

// reconcile prints what went wrong, and then what was paid beside what became of it.
func (c *chaos) reconcile(ctx context.Context) error {
	books, sentAgain, err := c.books(ctx)
	if err != nil {
		return err
	}
	fmt.Println()
	for _, row := range []struct {
		what  string
		count int
	}{
		{"payments sent twice", c.published - payments},
		{"receipts sent twice", sentAgain},
		{"duplicates skipped", c.counted("duplicate")},
		{"handler failures", c.counted("failed")},
		{"processes killed", c.counted("killed")},
	} {
		fmt.Printf("%-24s %8d\n", row.what, row.count)
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

// books are what should be written down beside what is. A receipt can be in its topic twice,
// with one UUID: the relay sends again what it could not write off before it was killed.
func (c *chaos) books(ctx context.Context) (books []row, sentAgain int, err error) {
	var bank struct{ Posted, Stated int }
	var topic struct{ Receipts, Copies int }
	var balances, totals []struct{ Account, Sum int }
	err = errors.Join(
		c.accounts.GetContext(ctx, &bank, `
			SELECT (SELECT SUM(payments) FROM account) AS posted, (SELECT SUM(receipts) FROM statement) AS stated`),
		c.topics.GetContext(ctx, &topic, `
			SELECT COUNT(DISTINCT uuid) AS receipts, COUNT(*) - COUNT(DISTINCT uuid) AS copies FROM watermill_receipts`),
		c.accounts.SelectContext(ctx, &balances, `SELECT id AS account, balance AS sum FROM account`),
		c.accounts.SelectContext(ctx, &totals, `SELECT account, total AS sum FROM statement`),
	)
	wrong := func(sums []struct{ Account, Sum int }) (n int) {
		for _, s := range sums {
			if s.Sum != c.balances[s.Account] {
				n++
			}
		}
		return n
	}
	return []row{
		{"payments posted", payments, bank.Posted},
		{"receipts sent", payments, topic.Receipts},
		{"receipts in statements", payments, bank.Stated},
		{"wrong balances", 0, wrong(balances)},
		{"wrong statements", 0, wrong(totals)},
	}, topic.Copies, err
}
