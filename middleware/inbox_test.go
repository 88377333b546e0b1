package middleware_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/testdb"
)

func open(t *testing.T) (*sqlx.DB, *inbox.Store) {
	t.Helper()
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	store, err := inbox.NewStore(db, inbox.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
	require.NoError(t, store.Migrate(t.Context()))
	_, err = db.ExecContext(t.Context(), `CREATE TABLE effects (id TEXT)`)
	require.NoError(t, err)
	return db, store
}

// A message whose step is in doubt goes back to its source after pauses that grow: it fails until somebody decides.
func TestAStepInDoubtSlowsItsSourceDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store := open(t)
		mail := func(msg *message.Message) error {
			_, err := inbox.Once(msg.Context(), "mail", func(context.Context, string) ([]byte, error) { return nil, errors.New("no answer") })
			return err
		}
		for _, h := range []message.HandlerFunc{
			millrace.Inbox{Store: store, Consumer: "billing", Options: inbox.Options{Before: mail}}.Middleware(effect),
			millrace.Deduplicate{Claims: store.Leases(), Consumer: "mailer"}.Middleware(
				func(msg *message.Message) ([]*message.Message, error) { return nil, mail(msg) }),
		} {
			began := time.Now()
			require.ErrorContains(t, send(h, "a"), "no answer")
			require.Zero(t, time.Since(began))
			pauses := make([]time.Duration, 10)
			for i := range pauses {
				began := time.Now()
				require.ErrorIs(t, send(h, "a"), inbox.ErrInDoubt)
				pauses[i] = time.Since(began)
			}
			require.GreaterOrEqual(t, pauses[0], 50*time.Millisecond)
			require.GreaterOrEqual(t, pauses[9], 2500*time.Millisecond)
			require.Less(t, pauses[9], 5*time.Second)
		}
	})
}

// So does a message at which each run loses its connection: its error does not say that the message is to blame.
func TestALostConnectionSlowsItsSourceDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := faults.Open(t, testdb.On(t, "sqlite"))
		store, err := inbox.NewStore(pool.DB, inbox.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
		loses := func(*message.Message) ([]*message.Message, error) {
			pool.Set(faults.Plan{Before: faults.Lose(faults.Rollback)})
			return nil, driver.ErrBadConn
		}
		h := millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(loses)
		pauses := make([]time.Duration, 10)
		for i := range pauses {
			began := time.Now()
			require.ErrorIs(t, send(h, "a"), inbox.ErrUnavailable)
			pool.Set(faults.Plan{})
			pauses[i] = time.Since(began)
		}
		require.GreaterOrEqual(t, pauses[0], 50*time.Millisecond)
		require.GreaterOrEqual(t, pauses[9], 2500*time.Millisecond)
		require.Less(t, pauses[9], 5*time.Second)
	})
}

func effect(msg *message.Message) ([]*message.Message, error) {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(msg.Context(), `INSERT INTO effects (id) VALUES (?)`, msg.UUID)
	return nil, err
}

func effects(t *testing.T, db *sqlx.DB) int {
	t.Helper()
	var n int
	require.NoError(t, db.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM effects`))
	return n
}

func TestInboxRunsTheHandlerOnce(t *testing.T) {
	db, store := open(t)
	h := millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(effect)
	id := watermill.NewUUID()
	for range 3 {
		_, err := h(message.NewMessage(id, []byte("x")))
		require.NoError(t, err)
	}
	require.Equal(t, 1, effects(t, db))
}

// A version gate that failed has run no handler, so a middleware that hides its error does not make
// the message a handled one. If the gate is asked again and answers, nothing is hidden.
func TestInboxCommitsNothingIfAGateFailed(t *testing.T) {
	ignore := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, _ := h(msg)
			return produced, nil
		}
	}
	again := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if _, err := h(msg); err == nil {
				return nil, nil
			}
			return h(msg)
		}
	}
	db, store := open(t)
	failures := 1
	gate := millrace.VersionGate{Version: func(msg *message.Message) ([]inbox.Version, error) {
		if failures > 0 {
			failures--
			return nil, context.DeadlineExceeded
		}
		return []inbox.Version{{Aggregate: msg.UUID, Number: 1}}, nil
	}}
	h := millrace.Inbox{Store: store, Consumer: "ignoring"}.Middleware(ignore(gate.Middleware(effect)))
	_, err := h(message.NewMessage("a", nil))
	require.ErrorIs(t, err, inbox.ErrSwallowed)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = h(message.NewMessage("a", nil))
	require.NoError(t, err)
	require.Equal(t, 1, effects(t, db))

	failures = 1
	h = millrace.Inbox{Store: store, Consumer: "retrying"}.Middleware(again(gate.Middleware(effect)))
	_, err = h(message.NewMessage("b", nil))
	require.NoError(t, err)
	require.Equal(t, 2, effects(t, db))
}
