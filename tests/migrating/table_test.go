package migrating_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// shop is a service that keeps a table of the messages that it has handled.
type shop struct {
	*testing.T
	db *sqlx.DB
}

// before is its handler: the mark and the work are in one transaction of its own.
func (s *shop) before(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	fresh, err := s.mark(ctx, tx, msg.UUID)
	if err != nil || !fresh {
		return err
	}
	if err := s.work(ctx, tx, msg); err != nil {
		return err
	}
	return tx.Commit()
}

// between is the handler while processes of the old release run: behind middleware.Inbox, with
// the mark in the transaction of the inbox.
func (s *shop) between(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	fresh, err := s.mark(ctx, tx, msg.UUID)
	if err != nil || !fresh {
		return err
	}
	return s.work(ctx, tx, msg)
}

// after is the handler in the end.
func (s *shop) after(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	return s.work(ctx, tx, msg)
}

// mark notes that the message is handled, and reports whether it was not.
func (s *shop) mark(ctx context.Context, tx *sqlx.Tx, id string) (fresh bool, err error) {
	result, err := tx.ExecContext(ctx, tx.Rebind(map[string]string{
		"pgx":    `INSERT INTO processed (message_id, processed_at) VALUES (?, CURRENT_TIMESTAMP) ON CONFLICT DO NOTHING`,
		"mysql":  `INSERT IGNORE INTO processed (message_id, processed_at) VALUES (?, UTC_TIMESTAMP())`,
		"sqlite": `INSERT INTO processed (message_id, processed_at) VALUES (?, CURRENT_TIMESTAMP) ON CONFLICT DO NOTHING`,
	}[strings.TrimSuffix(tx.DriverName(), "db")]), id)
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

// work is what would be wrong if it were done twice.
func (s *shop) work(ctx context.Context, tx *sqlx.Tx, msg *message.Message) error {
	_, err := tx.ExecContext(ctx, tx.Rebind(`UPDATE account SET balance = balance + 1 WHERE id = ?`), string(msg.Payload))
	return err
}

// TestFromATableOfProcessedMessages plays the steps of docs/migrating.md. At each of them
// messages come to processes of the two releases that run then, at the same time, and with
// them copies of older ones.
func TestFromATableOfProcessedMessages(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		s := newShop(t, db)
		first, second := s.release(s.between), s.release(s.after)
		s.deliver(0, s.before, s.before)
		s.deliver(1, s.before, first)
		s.deliver(2, first, first)
		report := s.imports(db)
		assert.Equal(t, admin.ImportReport{New: report.New, Known: 3*perStep - report.New}, report)
		assert.GreaterOrEqual(t, report.New, perStep/2, "what the old release handled, and nobody saw again")
		s.deliver(3, first, second)
		s.deliver(last, second, second)
	})
}

// TestATableWithoutTheImport is why there is the second step.
func TestATableWithoutTheImport(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	require.NoError(t, s.before(message.NewMessage("0", []byte("0-0"))))
	require.NoError(t, s.release(s.after)(message.NewMessage("0", []byte("0-0"))))
	assert.Equal(t, 2, s.balance("0-0"), "its effect is there twice")
}

const (
	perStep = 8
	last    = 4 // of the steps
)

func newShop(t *testing.T, db *testdb.DB) *shop {
	t.Helper()
	s := &shop{t, db.DB}
	s.exec(`CREATE TABLE account (id VARCHAR(40) PRIMARY KEY, balance INT NOT NULL)`)
	s.exec(`CREATE TABLE processed (message_id VARCHAR(40) PRIMARY KEY, processed_at TIMESTAMP NOT NULL)`)
	store, err := inbox.NewStore(s.db, inbox.Config{})
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	for step := range last + 1 {
		for n := range perStep {
			s.exec(s.db.Rebind(`INSERT INTO account (id, balance) VALUES (?, 0)`), fmt.Sprintf("%d-%d", step, n))
		}
	}
	return s
}

func (s *shop) exec(query string, args ...any) {
	s.Helper()
	_, err := s.db.ExecContext(s.Context(), query, args...)
	require.NoError(s, err)
}

// release is a process whose handler stands behind the inbox.
func (s *shop) release(handler func(*message.Message) error) func(*message.Message) error {
	s.Helper()
	store, err := inbox.NewStore(s.db, inbox.Config{})
	require.NoError(s, err)
	h := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) { return nil, handler(msg) })
	return func(msg *message.Message) error {
		_, err := h(msg)
		return err
	}
}

// deliver gives the messages of a step to both processes at once, each until it is acked, and
// with them copies of those of the steps before: of one in two, and of all in the last step.
func (s *shop) deliver(step int, processes ...func(*message.Message) error) {
	s.Helper()
	var ids []string
	for before := range step + 1 {
		for n := range perStep {
			if before == step || step == last || n%2 == 0 {
				ids = append(ids, fmt.Sprintf("%d-%d", before, n))
			}
		}
	}
	var wait sync.WaitGroup
	for _, handle := range processes {
		wait.Go(func() {
			for _, id := range ids {
				s.untilAcked(handle, id)
			}
		})
	}
	wait.Wait()
	for _, id := range ids {
		assert.Equal(s, 1, s.balance(id), "message %s after step %d", id, step)
	}
}

func (s *shop) untilAcked(handle func(*message.Message) error, id string) {
	var err error
	for range 50 { // a deadlock, or SQLite's writer, is the broker's to repeat
		if err = handle(message.NewMessage("uuid-"+id, []byte(id))); err == nil {
			return
		}
	}
	assert.NoError(s, err, id)
}

func (s *shop) balance(id string) (balance int) {
	s.Helper()
	require.NoError(s, s.db.GetContext(s.Context(), &balance, s.db.Rebind(`SELECT balance FROM account WHERE id = ?`), id))
	return balance
}

// imports has the inbox know what the table knows.
func (s *shop) imports(db *testdb.DB) admin.ImportReport {
	s.Helper()
	store, err := inbox.NewStore(db.DB, inbox.Config{})
	require.NoError(s, err)
	var ids []string
	require.NoError(s, s.db.SelectContext(s.Context(), &ids, `SELECT message_id FROM processed`))
	report, err := admin.New(store).Import(s.Context(), inbox.ConsumerConfig{Name: "accounts"}, func(yield func(admin.Imported, error) bool) {
		for _, id := range ids {
			if !yield(admin.Imported{Key: []string{id}}, nil) {
				return
			}
		}
	}, admin.Operator{Name: "ann", Reason: "the inbox takes the place of our table"}, admin.Pace{})
	require.NoError(s, err)
	return report
}
