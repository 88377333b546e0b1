package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPublisher(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, slices.Concat(inTxBodies, withTxBodies, handlerBodies, noTxBodies, chunkBodies, commitBodies,
		contentBodies, refusalBodies, columnBodies, cqrsBodies, routerBodies))
}

// inTxBodies: transactions that outbox.InTx begins.
var inTxBodies = []testdb.Body{
	{Name: "InTx", Why: "a message exists exactly if the work that it tells of was committed", Run: inTx},
	{Name: "InTx on a pool of one connection", Why: "a call of ours that gets a transaction never waits for another", Run: func(t *testing.T, db *testdb.DB) {
		o := newOffice(t, db.Open(t, testdb.Pool(1)))
		o.each(
			behaviour{"leaves the end to whoever began it", func(o *office) {
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
					require.NoError(o, outbox.InTx(ctx, o.db.DB, func(ctx context.Context, inner *sqlx.Tx) error {
						assert.Same(o, tx, inner)
						return o.put(ctx, "a")
					}))
					return errRefused
				})
				require.ErrorIs(o, err, errRefused)
				assert.Empty(o, o.stored())
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					require.ErrorIs(o, outbox.InTx(ctx, o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
						require.NoError(o, o.put(ctx, "b"))
						return errRefused
					}), errRefused)
					return o.put(ctx, "c")
				}))
				assert.Equal(o, []string{"b", "c"}, o.stored())
			}},
			behaviour{"begins anew where the transaction of its context has ended", func(o *office) {
				var old context.Context
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					old = ctx
					return nil
				}))
				require.ErrorIs(o, o.put(old, "a"), outbox.ErrTxEnded)
				require.NoError(o, outbox.InTx(old, o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					return o.put(ctx, "b")
				}))
				assert.Equal(o, []string{"b"}, o.stored())
			}},
			behaviour{"keeps a transaction on another database apart", func(o *office) {
				other := newOffice(o.T, testdb.On(o, "sqlite"))
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					require.NoError(o, outbox.InTx(ctx, other.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
						return other.put(ctx, "a")
					}))
					require.NoError(o, o.put(ctx, "b"))
					return errRefused
				})
				require.ErrorIs(o, err, errRefused)
				assert.Empty(o, o.stored())
				assert.Equal(o, []string{"a"}, other.stored())
			}},
		)
	}},
}

func inTx(t *testing.T, db *testdb.DB) {
	newOffice(t, db).each(
		behaviour{"commits work and messages together", func(o *office) {
			require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				require.NoError(o, work(ctx, tx))
				return o.put(ctx, "a", "b")
			}))
			assert.Equal(o, 1, o.worked())
			assert.Equal(o, []string{"a", "b"}, o.stored())
		}},
		behaviour{"rolls back on an error", func(o *office) {
			err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				require.NoError(o, work(ctx, tx))
				require.NoError(o, o.put(ctx, "a"))
				return errRefused
			})
			require.ErrorIs(o, err, errRefused)
			assert.Zero(o, o.worked())
			assert.Empty(o, o.stored())
		}},
		behaviour{"rolls back on a panic", func(o *office) {
			contexts := make(chan context.Context, 1)
			assert.PanicsWithValue(o, "boom", func() {
				_ = outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
					contexts <- ctx
					require.NoError(o, work(ctx, tx))
					require.NoError(o, o.put(ctx, "a"))
					panic("boom")
				})
			})
			assert.Zero(o, o.worked())
			assert.Empty(o, o.stored())
			over := <-contexts
			require.ErrorIs(o, o.put(over, "a"), outbox.ErrTxEnded)
			_, err := inbox.Tx(over)
			require.ErrorIs(o, err, inbox.ErrTxEnded)
			require.NoError(o, outbox.InTx(o.Context(), o.db.DB, work), "the turn to write is left")
		}},
		behaviour{"rolls back when its context ends", func(o *office) {
			ctx, cancel := context.WithCancel(o.Context())
			err := outbox.InTx(ctx, o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				require.NoError(o, work(ctx, tx))
				require.NoError(o, o.put(ctx, "a"))
				cancel()
				rig.Eventually(o, "it is rolled back", func() bool {
					return errors.Is(work(context.WithoutCancel(ctx), tx), sql.ErrTxDone)
				})
				return nil
			})
			require.ErrorIs(o, err, context.Canceled)
			assert.Zero(o, o.worked())
			assert.Empty(o, o.stored())
			require.ErrorIs(o, outbox.InTx(ctx, o.db.DB, nil), context.Canceled)
		}},
		behaviour{"is an error where its transaction was ended from within", func(o *office) {
			err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				require.NoError(o, o.put(ctx, "a"))
				return tx.Rollback()
			})
			require.ErrorContains(o, err, "outbox: commit")
			assert.Empty(o, o.stored())
		}},
		behaviour{"gives its transaction to inbox.Tx too", func(o *office) {
			require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				same, err := inbox.Tx(ctx)
				assert.Same(o, tx, same)
				return err
			}))
		}},
	)
}
