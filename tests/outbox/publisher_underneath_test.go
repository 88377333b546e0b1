package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A server of MySQL's family ends a transaction at a deadlock and at a schema statement, and
// goes on without one. MariaDB can be asked by the INSERT itself, MySQL cannot.
func TestATransactionThatTheServerEnded(t *testing.T) {
	t.Parallel()
	o := newOffice(t, testdb.On(t, "mysql"))
	o.lay()
	o.each(
		behaviour{"by a deadlock that the handler swallows", func(o *office) { endedInHandler(o, (*office).deadlock, true) }},
		behaviour{"by a deadlock after which the handler gives up", func(o *office) { endedInHandler(o, (*office).deadlock, false) }},
		behaviour{"by a schema statement", func(o *office) { endedInHandler(o, schemaStatement, false) }},
		behaviour{"of InTx", func(o *office) {
			for _, end := range []ending{(*office).deadlock, schemaStatement} {
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
					require.NoError(o, o.put(ctx, "a"))
					require.NoError(o, end(o, tx))
					return o.put(ctx, "b")
				})
				require.ErrorIs(o, err, outbox.ErrTxEnded)
				assert.NotContains(o, o.stored(), "b")
			}
		}},
		behaviour{"of InTx, before several messages and where sql_mode is not strict", func(o *office) {
			o.db = o.db.Open(o.T, testdb.Params("sql_mode", "''"))
			o.out = o.publisher()
			for _, end := range []ending{(*office).deadlock, schemaStatement} {
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
					require.NoError(o, end(o, tx))
					return o.put(ctx, "a", "b")
				})
				require.ErrorIs(o, err, outbox.ErrTxEnded)
				assert.Empty(o, o.stored())
			}
		}},
		behaviour{"of WithTx", func(o *office) {
			for _, kind := range []func(tx *sqlx.Tx) outbox.Tx{
				func(tx *sqlx.Tx) outbox.Tx { return tx }, func(tx *sqlx.Tx) outbox.Tx { return tx.Tx },
				func(tx *sqlx.Tx) outbox.Tx { return traced{tx, map[string]int{}} },
				func(tx *sqlx.Tx) outbox.Tx { return narrow{tx} },
			} {
				for _, end := range []ending{(*office).deadlock, schemaStatement} {
					tx := o.begin().tx
					ctx := outbox.WithTx(o.Context(), kind(tx))
					require.NoError(o, end(o, tx))
					if err := o.put(ctx, "a"); err == nil && o.waits() {
						require.Error(o, tx.Commit())
					} else {
						require.ErrorIs(o, err, outbox.ErrTxEnded)
						require.NoError(o, tx.Rollback())
					}
				}
			}
			assert.Empty(o, o.stored())
		}},
	)
}

// What guards a transaction must not be in the way of those who use one.
func TestATransactionIsSharedWithThePublisher(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newOffice(t, db).each(
			behaviour{"savepoints of the service survive", func(o *office) {
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
					o.in(ctx, tx, `SAVEPOINT outer_one`)
					require.NoError(o, o.put(ctx, "a"))
					o.in(ctx, tx, `SAVEPOINT inner_one`)
					require.NoError(o, o.put(ctx, "undone"))
					o.in(ctx, tx, `ROLLBACK TO SAVEPOINT inner_one`)
					require.NoError(o, o.out.Publish("orders", heavy(ctx, "b", "c")...))
					o.in(ctx, tx, `RELEASE SAVEPOINT outer_one`)
					return o.put(ctx, "d")
				}))
				assert.Equal(o, []string{"a", "b", "c", "d"}, o.stored())
			}},
			behaviour{"goroutines publish in one transaction", func(o *office) {
				const each = 8
				publish := func(ctx context.Context) {
					var all sync.WaitGroup
					for n := range 6 {
						all.Go(func() {
							for i := range each {
								msgs := carried(ctx, fmt.Sprintf("%d-%d", n, i))
								if i == 0 {
									msgs = heavy(ctx, fmt.Sprintf("%d-heavy", n), fmt.Sprintf("%d-%d", n, i))
								}
								assert.NoError(o, o.out.Publish("orders", msgs...))
							}
						})
					}
					all.Wait()
				}
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					publish(ctx)
					return nil
				}))
				assert.Len(o, o.stored(), 6*(each+1))
				tx := o.begin().tx
				publish(outbox.WithTx(o.Context(), tx))
				require.NoError(o, tx.Commit())
				assert.Len(o, o.stored(), 2*6*(each+1))
			}},
		)
	})
}

// narrow is a transaction that can be asked nothing.
type narrow struct{ outbox.Tx }

// ending ends the transaction of tx underneath, and hides it.
type ending func(o *office, tx *sqlx.Tx) error

// endedInHandler has a handler publish after its transaction was ended, and then succeed or
// not; its redelivery is not disturbed.
func endedInHandler(o *office, end ending, swallow bool) {
	disturbed := true
	h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := inbox.Tx(msg.Context())
		require.NoError(o, err)
		require.NoError(o, work(msg.Context(), tx))
		require.NoError(o, o.put(msg.Context(), "before"))
		if disturbed {
			require.NoError(o, end(o, tx))
		}
		err = o.put(msg.Context(), "after")
		if disturbed && swallow {
			if !o.waits() {
				require.ErrorIs(o, err, outbox.ErrTxEnded)
			}
			return nil, nil
		}
		return nil, err
	})
	msg := newOrder()
	require.Error(o, do(h, msg.Copy()))
	assert.NotContains(o, o.stored(), "after")
	disturbed = false
	require.NoError(o, do(h, msg.Copy()))
	after := slices.DeleteFunc(o.stored(), func(id string) bool { return id != "after" })
	assert.Len(o, after, 1)
}

// waits reports whether what is published may wait for COMMIT, which then fails in its place.
func (o *office) waits() bool { return o.db.DriverName() == "pgxdb" || o.db.DriverName() == "mysqldb" }

func schemaStatement(o *office, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(o.Context(), `CREATE TABLE IF NOT EXISTS more (id INT)`)
	return err
}

// lay makes what deadlocks are made of.
func (o *office) lay() {
	o.Helper()
	o.db.Do(o, `CREATE TABLE locks (id INT NOT NULL PRIMARY KEY, n INT NOT NULL)`)
	o.db.Do(o, `INSERT INTO locks VALUES (1, 0), (2, 0)`)
	for n := range 200 {
		o.db.Do(o, `INSERT INTO locks VALUES (?, 0)`, 100+n)
	}
}

// deadlock has the server roll tx back, of two transactions that wait for each other the one
// that has written less.
func (o *office) deadlock(tx *sqlx.Tx) error {
	o.Helper()
	other := o.begin().tx
	o.in(o.Context(), other, `UPDATE locks SET n = n + 1 WHERE id >= 100`)
	o.in(o.Context(), other, `UPDATE locks SET n = n + 1 WHERE id = 2`)
	o.in(o.Context(), tx, `UPDATE locks SET n = n + 1 WHERE id = 1`)
	waited := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(o.Context(), `UPDATE locks SET n = n + 1 WHERE id = 1`)
		waited <- err
	}()
	_, err := tx.ExecContext(o.Context(), `UPDATE locks SET n = n + 1 WHERE id = 2`)
	var refused *mysql.MySQLError
	require.ErrorAs(o, err, &refused)
	require.EqualValues(o, 1213, refused.Number)
	require.NoError(o, <-waited)
	return other.Rollback()
}

// in runs a statement in tx.
func (o *office) in(ctx context.Context, tx *sqlx.Tx, statement string) {
	o.Helper()
	_, err := tx.ExecContext(ctx, statement)
	require.NoError(o, err)
}
