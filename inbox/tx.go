package inbox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
)

// Tx returns the transaction in which the message of ctx is handled. The transaction already
// holds the claim on the message: what the handler writes through it is committed with the
// claim or not at all. Do not commit it or roll it back; to roll back, return an error.
//
// The embedded *sql.Tx is for code that wants one: queries.New(tx.Tx).
//
// It returns [ErrNoTx] if no middleware.Inbox put a transaction into ctx, and [ErrTxEnded]
// once the handler has returned.
func Tx(ctx context.Context) (*sqlx.Tx, error) {
	t := ambient.From(ctx)
	if t == nil {
		return nil, ErrNoTx
	}
	tx, ok := t.Take()
	if !ok {
		return nil, ErrTxEnded
	}
	return tx, nil
}

// SetResult stores v, as JSON, with the claim on the message of ctx. admin.Admin.Story shows
// it, and [Store.Result] returns it, for instance to a caller that sent a duplicate. The last
// call wins. Keep v small. It returns the errors of [Tx], and an error if v has no JSON form.
func SetResult(ctx context.Context, v any) error {
	t := ambient.From(ctx)
	if t == nil {
		return ErrNoTx
	}
	if _, ok := t.Take(); !ok {
		return ErrTxEnded
	}
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("inbox: encode the result as JSON: %w", err)
	}
	t.SetResult(body)
	return nil
}
