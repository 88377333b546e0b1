package outbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// withTxBodies: transactions that the service begins and ends by itself.
var withTxBodies = []testdb.Body{
	{Name: "WithTx", Why: "an HTTP handler's messages are stored in its own transaction", Run: func(t *testing.T, db *testdb.DB) {
		kinds := map[string]func(tx *sqlx.Tx) outbox.Tx{
			"*sqlx.Tx":          func(tx *sqlx.Tx) outbox.Tx { return tx },
			"*sql.Tx":           func(tx *sqlx.Tx) outbox.Tx { return tx.Tx },
			"a wrapper of them": func(tx *sqlx.Tx) outbox.Tx { return traced{tx, map[string]int{}} },
		}
		o := newOffice(t, db)
		for name, kind := range kinds {
			o.each(behaviour{"stores in a " + name, func(o *office) {
				tx := o.begin().tx
				ctx := outbox.WithTx(o.Context(), kind(tx))
				require.NoError(o, o.put(ctx, "a", "b"))
				require.NoError(o, o.put(ctx, "c"))
				require.NoError(o, tx.Commit())
				assert.Equal(o, []string{"a", "b", "c"}, o.stored())
				require.ErrorIs(o, o.put(ctx, "d"), outbox.ErrTxEnded)

				undone := o.begin().tx
				ctx = outbox.WithTx(o.Context(), kind(undone))
				require.NoError(o, o.put(ctx, "d", "e"))
				require.NoError(o, undone.Rollback())
				require.ErrorIs(o, o.put(ctx, "f"), outbox.ErrTxEnded)
				assert.Equal(o, []string{"a", "b", "c"}, o.stored())
			}})
		}
		o.each(
			behaviour{"takes two contexts of one transaction in a call", func(o *office) {
				tx := o.begin().tx
				msgs := append(carried(outbox.WithTx(o.Context(), tx), "a"), carried(outbox.WithTx(o.Context(), tx), "b")...)
				require.NoError(o, o.out.Publish("orders", msgs...))
				require.NoError(o, tx.Commit())
				assert.Equal(o, []string{"a", "b"}, o.stored())
			}},
			behaviour{"is joined by InTx", func(o *office) {
				tx := o.begin().tx
				ctx := outbox.WithTx(o.Context(), tx)
				require.NoError(o, outbox.InTx(ctx, o.db.DB, func(ctx context.Context, inner *sqlx.Tx) error {
					assert.Same(o, tx, inner)
					return o.put(ctx, "a")
				}))
				require.NoError(o, tx.Rollback())
				assert.Empty(o, o.stored())
			}},
			behaviour{"is refused by InTx, which cannot make a *sqlx.Tx of a *sql.Tx", func(o *office) {
				tx := o.begin().tx
				err := outbox.InTx(outbox.WithTx(o.Context(), tx.Tx), o.db.DB, func(context.Context, *sqlx.Tx) error {
					assert.Fail(o, "the work ran")
					return nil
				})
				require.ErrorContains(o, err, "*sqlx.Tx")
			}},
			behaviour{"needs a transaction", func(o *office) {
				for _, none := range []outbox.Tx{nil, (*sqlx.Tx)(nil), (*sql.Tx)(nil)} {
					ctx := outbox.WithTx(o.Context(), none)
					require.ErrorIs(o, o.put(ctx, "a"), outbox.ErrNoTx)
					err := o.publisher(standalone).Publish("orders", carried(ctx, "a")...)
					require.ErrorIs(o, err, outbox.ErrNoTx, "who gives one wants one")
				}
				assert.Empty(o, o.stored())
			}},
		)
	}},
	{Name: "WithTx inside and outside of others", Why: "the innermost transaction is meant", Run: func(t *testing.T, db *testdb.DB) {
		newOffice(t, db).each(
			behaviour{"inside InTx: WithTx wins", func(o *office) {
				beside := o.beside()
				tx := beside.begin().tx
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, own *sqlx.Tx) error {
					inner := outbox.WithTx(ctx, tx)
					require.NoError(o, o.put(inner, "a"))
					require.NoError(o, o.put(ctx, "b"))
					return errRefused
				})
				require.ErrorIs(o, err, errRefused)
				require.NoError(o, tx.Commit())
				assert.Equal(o, []string{"a"}, beside.stored())
			}},
			behaviour{"inside InTx, and InTx again: the last one wins", func(o *office) {
				other := newOffice(o.T, testdb.On(o, "sqlite"))
				tx := other.begin().tx
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, own *sqlx.Tx) error {
					return outbox.InTx(outbox.WithTx(ctx, tx), o.db.DB, func(ctx context.Context, again *sqlx.Tx) error {
						assert.Same(o, own, again)
						return o.put(ctx, "a")
					})
				}))
				require.NoError(o, tx.Rollback())
				assert.Equal(o, []string{"a"}, o.stored())
			}},
			behaviour{"around InTx on another database: InTx wins", func(o *office) {
				other := newOffice(o.T, testdb.On(o, "sqlite"))
				tx := other.begin().tx
				for _, outer := range []outbox.Tx{tx, tx.Tx, traced{tx, map[string]int{}}} {
					require.NoError(o, outbox.InTx(outbox.WithTx(o.Context(), outer), o.db.DB,
						func(ctx context.Context, _ *sqlx.Tx) error { return o.put(ctx, "a") }))
				}
				require.NoError(o, tx.Rollback())
				assert.Equal(o, []string{"a", "a", "a"}, o.stored())
			}},
			behaviour{"inside a handler: WithTx wins", func(o *office) {
				beside := o.beside()
				tx := beside.begin().tx
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					require.NoError(o, o.put(outbox.WithTx(msg.Context(), tx), "a"))
					require.NoError(o, o.put(msg.Context(), "b"))
					return nil, errRefused
				})
				require.ErrorIs(o, do(h, newOrder()), errRefused)
				require.NoError(o, tx.Commit())
				assert.Equal(o, []string{"a"}, beside.stored())
			}},
			behaviour{"inside a handler, with the handler's own transaction", func(o *office) {
				fail := true
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					tx, err := inbox.Tx(msg.Context())
					require.NoError(o, err)
					require.NoError(o, o.put(outbox.WithTx(msg.Context(), tx.Tx), "a"))
					if fail {
						return nil, errRefused
					}
					return nil, nil
				}, func(i *millrace.Inbox) { i.RequireTx = true })
				require.ErrorIs(o, do(h, newOrder()), errRefused)
				assert.Empty(o, o.stored())
				fail = false
				require.NoError(o, do(h, newOrder()))
				assert.Equal(o, []string{"a"}, o.stored())
			}},
			behaviour{"around a handler: the handler's wins", func(o *office) {
				beside := o.beside()
				tx := beside.begin().tx
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					return nil, o.put(msg.Context(), "a")
				})
				require.NoError(o, do(h, carried(outbox.WithTx(o.Context(), tx), watermill.NewUUID())[0]))
				require.NoError(o, tx.Rollback())
				assert.Equal(o, []string{"a"}, o.stored())
			}},
		)
	}},
}

// traced is a transaction as a tracing library wraps it, and cannot be compared.
type traced struct {
	*sqlx.Tx
	statements map[string]int
}

func (t traced) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.statements[query]++
	return t.Tx.ExecContext(ctx, query, args...)
}
