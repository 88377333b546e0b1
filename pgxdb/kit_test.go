package pgxdb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestTheCrashKit knows the statements of [pgxdb.Tx]: by their names, with the lines of the handler, and with savepoints.
func TestTheCrashKit(t *testing.T) {
	for _, driver := range []string{"pgx", "pgxdb"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			service := service(t, driver, func(ctx context.Context, tx pgx.Tx, id string) error {
				var n int
				if err := tx.QueryRow(ctx, `SELECT COUNT(*) FROM work WHERE word = $1`, id).Scan(&n); err != nil {
					return err
				}
				if _, err := tx.CopyFrom(ctx, pgx.Identifier{"copied"}, []string{"word"}, pgx.CopyFromRows([][]any{{id}})); err != nil {
					return err
				}
				if err := tx.SendBatch(ctx, batched(id)).Close(); err != nil {
					return err
				}
				return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO work (word) VALUES ($1)`, id)
					return err
				})
			})
			faults := inboxtest.Faults(t, service)
			for _, want := range []string{
				"crash before m1 BORROW", "lose after m1 SELECT work", "fail before m1 COPY copied", "slow m1 INSERT work", "interrupt m1 INSERT work #2",
				"fail before m1 SAVEPOINT", "lose before m1 RELEASE",
			} {
				assert.Contains(t, faults, want)
				inboxtest.Replay(t, service, want)
			}
		})
	}
}

// TestTheCrashKitFinds a handler that goes on after a refused statement, from a savepoint.
func TestTheCrashKitFinds(t *testing.T) {
	heard := &heard{TB: t}
	inboxtest.Replay(heard, service(t, "pgx", func(ctx context.Context, tx pgx.Tx, id string) error {
		_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO work (word) VALUES ($1)`, id)
			return err
		})
		return nil
	}), "fail before m2 INSERT work")
	assert.Contains(t, heard.text, "I1, I2: the ledger is")
	assert.Regexp(t, `m2 INSERT work +\(kit_test\.go:\d+\)`, heard.text)
}

func batched(id string) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO work (word) VALUES ($1)`, id)
	b.Queue(`UPDATE copied SET word = word || '!' WHERE word = $1`, id)
	return b
}

// service returns a service with a handler, whose ledger counts the rows it wrote.
func service(t *testing.T, driver string, handle func(ctx context.Context, tx pgx.Tx, id string) error) inboxtest.Scenario {
	t.Helper()
	return inboxtest.Scenario{
		Databases: []inboxtest.Database{{Driver: driver, DSN: testdb.On(t, "postgres", testdb.Empty()).DSN}},
		Inputs:    inboxtest.To("in", message.NewMessage("a", nil), message.NewMessage("b", nil)),
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{})
			if err == nil {
				err = store.Migrate(ctx)
			}
			if err == nil {
				_, err = db.ExecContext(ctx, `CREATE TABLE work (word TEXT); CREATE TABLE copied (word TEXT)`)
			}
			return err
		},
		Service: func(p *inboxtest.Process) error {
			store, err := inbox.NewStore(p.DB, inbox.Config{Logger: p.Logger})
			if err != nil {
				return err
			}
			p.OnClose(store.Close)
			middleware.Inbox{Store: store}.AddTo(p.Router)
			p.Router.AddConsumerHandler("work", "in", p.Subscriber, func(msg *message.Message) error {
				tx, err := pgxdb.Tx(msg.Context())
				if err != nil {
					return err
				}
				return handle(msg.Context(), tx, msg.UUID)
			})
			return nil
		},
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			var words []string
			return words, db.SelectContext(ctx, &words, `SELECT word FROM work UNION ALL SELECT word FROM copied ORDER BY word`)
		},
	}
}

// heard is a test that keeps what it is told.
type heard struct {
	testing.TB
	text string
}

func (h *heard) Errorf(format string, args ...any) {
	h.text += strings.TrimSpace(fmt.Sprintf(format, args...)) + "\n"
}
