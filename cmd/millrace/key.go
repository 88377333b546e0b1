package main

import (
	"context"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/keycode"
)

func keyText(key string) string { return keycode.Argument(key) }

func jsonKey(key string) string { return keycode.Text(key) }

func keyOf(arg string) string { return keycode.Read(arg) }

// row returns the open message of a row.
func (a *app) row(ctx context.Context, store *inbox.Store, id int64) (admin.Message, error) {
	m, err := admin.New(store).Message(ctx, id)
	if exitCode(err) == exitNotFound {
		err = notFoundf("there is no open message with the row id %d: it was handled or discarded, or --namespace is not right", id)
	}
	return m, err
}
