package pgxdb_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// panics panics when pgx rewrites the query whose argument it is, or encodes it.
type panics struct{ rewriting bool }

func (p panics) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, _ []any) (string, []any, error) {
	if p.rewriting {
		panic("it panics")
	}
	return sql, []any{encoded{}}, nil
}

// encoded panics when it is encoded, which within a batch is after pgx has begun to send.
type encoded struct{}

func (encoded) Value() (driver.Value, error) { panic("it panics") }

// TestAPanicWhileAQueryIsSent gives the connection back.
func TestAPanicWhileAQueryIsSent(t *testing.T) {
	const statement = `SELECT $1::text`
	sends := map[string]func(ctx context.Context, tx pgx.Tx, arg any){
		"Query":    func(ctx context.Context, tx pgx.Tx, arg any) { _, _ = tx.Query(ctx, statement, arg) }, //nolint:sqlclosecheck,rowserrcheck // there are none
		"QueryRow": func(ctx context.Context, tx pgx.Tx, arg any) { _ = tx.QueryRow(ctx, statement, arg).Scan() },
		"SendBatch": func(ctx context.Context, tx pgx.Tx, arg any) {
			var b pgx.Batch
			b.Queue(statement, arg)
			_ = tx.SendBatch(ctx, &b).Close()
		},
	}
	begins := map[string]func(t *testing.T, pool *sqlx.DB, work func(ctx context.Context, tx pgx.Tx) error) error{
		"handler": in,
		"outbox.InTx": func(t *testing.T, pool *sqlx.DB, work func(ctx context.Context, tx pgx.Tx) error) error {
			return outbox.InTx(t.Context(), pool, func(ctx context.Context, _ *sqlx.Tx) error {
				tx, err := pgxdb.Tx(ctx)
				require.NoError(t, err)
				return work(ctx, tx)
			})
		},
		"pgx.BeginFunc": func(t *testing.T, pool *sqlx.DB, work func(ctx context.Context, tx pgx.Tx) error) error {
			return in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
				return pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error { return work(ctx, sp) })
			})
		},
	}
	each(t, func(t *testing.T, _ *testdb.DB, pool *sqlx.DB) {
		pool.SetMaxOpenConns(1)
		for where, begin := range begins {
			for how, send := range sends {
				for _, arg := range []panics{{rewriting: true}, {}} {
					got := rig.Within(t, rig.Go(func() (err error) {
						defer func() { err = fmt.Errorf("panic: %v", recover()) }()
						return begin(t, pool, func(ctx context.Context, tx pgx.Tx) error {
							send(ctx, tx, arg)
							return nil
						})
					}), where+", "+how)
					require.ErrorContains(t, got, "it panics")
					require.NoError(t, rig.Within(t, rig.Go(func() error {
						return in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
							_, err := tx.Exec(ctx, `SELECT 1`)
							return err
						})
					}), "the next message"))
				}
			}
		}
	})
}
