package inboxtest_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // the kit plays on SQLite where a scenario names no database

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A shop takes what was ordered out of its stock. The handler looks right, and its tests
// were green: each message was delivered once, and nobody died.
func ExampleExhaust() {
	takeFromStock := func(db *sqlx.DB) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(msg.Context(), `INSERT INTO orders (id) VALUES (?)`, msg.UUID)
			if err != nil {
				return err
			}
			_, err = db.ExecContext(msg.Context(), `UPDATE reserved SET items = items + 1`)
			return err
		}
	}

	scenario := inboxtest.Scenario{
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{})
			if err != nil {
				return err
			}
			if err := store.Migrate(ctx); err != nil {
				return err
			}
			_, err = db.ExecContext(ctx, `
				CREATE TABLE orders (id TEXT PRIMARY KEY);
				CREATE TABLE reserved (items INTEGER NOT NULL);
				INSERT INTO reserved (items) VALUES (0)`)
			return err
		},
		Service: func(p *inboxtest.Process) error {
			store, err := inbox.NewStore(p.DB, inbox.Config{Logger: p.Logger})
			if err != nil {
				return err
			}
			p.OnClose(store.Close)
			millrace.Inbox{Store: store, Timeout: 300 * time.Millisecond}.AddTo(p.Router)
			p.Router.AddConsumerHandler("stock", "orders", p.Subscriber, takeFromStock(p.DB))
			return nil
		},
		Inputs: inboxtest.To("orders", message.NewMessage("order-1", nil), message.NewMessage("order-2", nil)),
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			var ledger struct{ Orders, Reserved int }
			err := db.GetContext(ctx, &ledger, `SELECT (SELECT COUNT(*) FROM orders) AS orders, (SELECT items FROM reserved) AS reserved`)
			return ledger, err
		},
	}

	t := &printer{} // in a test: its *testing.T
	defer t.close()
	inboxtest.Exhaust(t, scenario)

	// Output:
	// written outside of the inbox's transaction: UPDATE reserved SET items = items + 1
}

// printer prints the first line of what a test is told first, without where it was.
type printer struct {
	testing.TB
	printed bool
	dirs    []string
}

func (p *printer) Errorf(format string, args ...any) {
	if p.printed {
		return
	}
	p.printed = true
	line, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	if _, what, found := strings.Cut(line, ".go:"); found {
		_, line, _ = strings.Cut(what, ": ")
	}
	fmt.Println(line)
}

func (p *printer) Helper()             {}
func (p *printer) Logf(string, ...any) {}
func (p *printer) Cleanup(func())      {}

func (p *printer) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	p.dirs = append(p.dirs, dir)
	return dir
}

func (p *printer) close() {
	for _, dir := range p.dirs {
		_ = os.RemoveAll(dir)
	}
}
