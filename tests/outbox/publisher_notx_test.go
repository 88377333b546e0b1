package outbox_test

import (
	"context"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// noTxBodies: messages without a transaction, with several, and with one that is over.
var noTxBodies = []testdb.Body{
	{Name: "no transaction, or several", Why: "a message is never stored apart from the work that it tells of", Run: func(t *testing.T, db *testdb.DB) {
		newOffice(t, db).each(
			behaviour{"is refused", func(o *office) {
				err := o.put(o.Context(), "a", "b")
				require.ErrorIs(o, err, outbox.ErrNoTx)
				assert.ErrorContains(o, err, "pass the context of the handler, of outbox.InTx or of outbox.WithTx to the CQRS bus", "which may be at hand already")
				assert.ErrorContains(o, err, `"a"`)
				assert.ErrorContains(o, err, `"orders"`)
				assert.Empty(o, o.stored())
			}},
			behaviour{"is stored alone where that is asked for", func(o *office) {
				out := o.publisher(standalone)
				require.NoError(o, out.Publish("orders", carried(o.Context(), "a", "b")...))
				assert.Equal(o, []string{"a", "b"}, o.stored())
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					require.NoError(o, out.Publish("orders", carried(ctx, "c")...))
					return errRefused
				})
				require.ErrorIs(o, err, errRefused)
				assert.Equal(o, []string{"a", "b"}, o.stored(), "with a transaction it is stored there")
			}},
			behaviour{"is stored alone though the router closes", func(o *office) {
				ctx, cancel := context.WithCancel(o.Context())
				cancel()
				require.NoError(o, o.publisher(standalone).Publish("orders", carried(ctx, "a")...))
				assert.Equal(o, []string{"a"}, o.stored())
			}},
			behaviour{"two in one call are refused", func(o *office) {
				beside := o.beside()
				tx, other := o.begin().tx, beside.begin().tx
				msgs := append(carried(outbox.WithTx(o.Context(), tx), "a"), carried(outbox.WithTx(o.Context(), other), "b")...)
				for _, out := range []*outbox.Publisher{o.out, o.publisher(standalone)} {
					err := out.Publish("orders", msgs...)
					require.ErrorContains(o, err, "different transactions")
					assert.ErrorContains(o, err, `"a"`)
					assert.ErrorContains(o, err, `"b"`)
				}
				require.NoError(o, tx.Commit())
				require.NoError(o, other.Commit())
				assert.Empty(o, o.stored())
				assert.Empty(o, beside.stored())
			}},
			behaviour{"one and none in a call are refused", func(o *office) {
				tx := o.begin().tx
				with, without := carried(outbox.WithTx(o.Context(), tx), "with"), carried(o.Context(), "without")
				for _, out := range []*outbox.Publisher{o.out, o.publisher(standalone)} {
					for _, msgs := range [][]*message.Message{slices.Concat(with, without), slices.Concat(without, with)} {
						err := out.Publish("orders", msgs...)
						require.ErrorIs(o, err, outbox.ErrNoTx)
						assert.ErrorContains(o, err, `message "without"`)
					}
				}
				require.NoError(o, tx.Commit())
				assert.Empty(o, o.stored())
			}},
		)
	}},
	{Name: "an ended transaction", Why: "a publish that comes too late is refused, and never stored by itself", Run: func(t *testing.T, db *testdb.DB) {
		newOffice(t, db).each(
			behaviour{"that the service ended", func(o *office) {
				for _, end := range []func(*sqlx.Tx) error{(*sqlx.Tx).Commit, (*sqlx.Tx).Rollback} {
					tx := o.begin().tx
					require.NoError(o, end(tx))
					ctx := outbox.WithTx(o.Context(), tx)
					require.ErrorIs(o, o.put(ctx, "a"), outbox.ErrTxEnded)
					require.ErrorIs(o, o.out.Publish("orders", heavy(ctx, "a", "b")...), outbox.ErrTxEnded)
				}
				assert.Empty(o, o.stored())
			}},
			behaviour{"that InTx ended", func(o *office) {
				for _, end := range []error{nil, errRefused} {
					var ended context.Context
					err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
						ended = ctx
						return end
					})
					require.ErrorIs(o, err, end)
					require.ErrorIs(o, o.put(ended, "a"), outbox.ErrTxEnded)
					err = o.publisher(standalone).Publish("orders", carried(ended, "b")...)
					require.ErrorIs(o, err, outbox.ErrTxEnded)
				}
				assert.Empty(o, o.stored())
			}},
			behaviour{"that ended underneath", func(o *office) {
				ends := []string{`ROLLBACK`, `COMMIT`}
				switch o.db.Dialect {
				case "mysql":
					ends[1] = `CREATE TABLE more (id INT)`
				case "sqlite":
					return // what is stored then is not committed
				}
				for _, end := range ends {
					for _, msgs := range [][]*message.Message{
						carried(o.Context(), "a"), carried(o.Context(), "a", "b"), heavy(o.Context(), "a", "b"),
					} {
						err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
							_, err := tx.ExecContext(ctx, end)
							require.NoError(o, err)
							require.ErrorIs(o, o.publishIn(ctx, "orders", msgs), outbox.ErrTxEnded)
							return errRefused
						})
						require.ErrorIs(o, err, errRefused)
						assert.Empty(o, o.stored())
						o.db.Do(o, `DROP TABLE IF EXISTS more`)
					}
				}
			}},
			behaviour{"beside one that lives", func(o *office) {
				var ended context.Context
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					ended = ctx
					return nil
				}))
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					err := o.out.Publish("orders", append(carried(ctx, "a"), carried(ended, "b")...)...)
					require.ErrorIs(o, err, outbox.ErrTxEnded)
					return nil
				}))
				assert.Empty(o, o.stored())
			}},
		)
	}},
}
