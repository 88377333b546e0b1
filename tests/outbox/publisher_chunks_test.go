package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/testdb"
)

// chunkBodies: how many statements a call takes, and that it is one whole.
var chunkBodies = []testdb.Body{
	{
		Name: "statements", Run: statements,
		Why: "a call is one INSERT, and as few as possible where it is too long for one",
	},
	{Name: "all or nothing", Why: "whatever fails, and whatever the caller makes of it, no part of a call is stored", Run: func(t *testing.T, db *testdb.DB) {
		w := newWire(t, db)
		// ignoring is what a caller does that commits, whatever Publish said.
		ignoring := func(o *office, failing func(ctx context.Context) error) {
			require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				require.NoError(o, work(ctx, tx))
				require.NoError(o, o.put(ctx, "before"))
				require.Error(o, failing(ctx))
				return o.put(ctx, "after")
			}))
			assert.Equal(o, 1, o.worked())
			assert.Equal(o, []string{"before", "after"}, o.stored())
		}
		w.each(
			behaviour{"where a later statement cannot be sent", func(o *office) {
				ignoring(o, func(ctx context.Context) error {
					w.watch(3, func() error { return errRefused })
					err := o.out.Publish("orders", heavy(ctx, "a", "b", "c")...)
					require.ErrorIs(o, err, errRefused)
					assert.ErrorContains(o, err, `message "c"`, "which one")
					assert.Equal(o, "SAVEPOINT millrace_outbox INSERT(1) INSERT(1) INSERT(1) "+
						"ROLLBACK TO SAVEPOINT millrace_outbox", w.seen())
					return err
				})
			}},
			behaviour{"where the message's context ends meanwhile", func(o *office) {
				ignoring(o, func(ctx context.Context) error {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					w.watch(2, func() error { cancel(); return context.Canceled })
					err := o.out.Publish("orders", heavy(ctx, "a", "b")...)
					require.ErrorIs(o, err, context.Canceled)
					w.seen()
					return err
				})
			}},
			behaviour{"where it stands alone", func(o *office) {
				w.watch(2, func() error { return errRefused })
				require.ErrorIs(o, o.publisher(standalone).Publish("orders", heavy(o.Context(), "a", "b")...), errRefused)
				w.seen()
				assert.Empty(o, o.stored())
			}},
		)
		unique := map[string]string{
			"postgres": `CREATE UNIQUE INDEX once ON millrace_outbox (uuid)`,
			"mysql":    `CREATE UNIQUE INDEX once ON millrace_outbox (uuid(100))`,
			"sqlite":   `CREATE UNIQUE INDEX once ON millrace_outbox (uuid)`,
		}
		db.Do(t, unique[db.Dialect])
		w.each(
			behaviour{"where the database refuses a later statement", func(o *office) {
				ignoring(o, func(ctx context.Context) error {
					return o.out.Publish("orders", append(heavy(ctx, "a", "b"), heavy(ctx, "before")...)...)
				})
			}},
			behaviour{"where the database refuses the only statement", func(o *office) {
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
					require.NoError(o, o.put(ctx, "before"))
					err := o.put(ctx, "one", "before", "two")
					require.True(o, err != nil || o.waits() && !o.db.MySQL())
					return nil
				})
				if o.waits() && !o.db.MySQL() {
					require.ErrorContains(o, err, `store 3 messages, "one" to "two"`)
					assert.Empty(o, o.stored())
					return
				}
				if o.db.Dialect == "postgres" {
					require.ErrorContains(o, err, "set a SAVEPOINT", "a failed statement fails the transaction")
					assert.Empty(o, o.stored())
					return
				}
				require.NoError(o, err)
				assert.Equal(o, []string{"before"}, o.stored())
			}},
			behaviour{"where the database refuses it alone", func(o *office) {
				require.Error(o, o.publisher(standalone).Publish("orders", carried(o.Context(), "a", "b", "a")...))
				assert.Empty(o, o.stored())
			}},
		)
	}},
}

// wire is an office whose calls to the database can be watched and broken.
type wire struct {
	*office
	faults *faults.Faults

	mu      sync.Mutex
	calls   []string // an INSERT of messages with the number of its rows
	asks    []string // what is in a call that asks whether the transaction stands, and is not noted
	inserts int
}

func newWire(t *testing.T, db *testdb.DB) *wire {
	t.Helper()
	w := &wire{faults: faults.Open(t, db)}
	w.office = newOffice(t, &testdb.DB{DB: w.faults.DB, Dialect: db.Dialect, Driver: db.Driver, DSN: db.DSN})
	if db.Dialect != "mysql" {
		return w
	}
	const guard = `SELECT /*M! 1 + */ 0` // asked once by each publisher
	w.asks = []string{guard}
	var guarded bool
	require.NoError(t, db.GetContext(t.Context(), &guarded, guard))
	if !guarded {
		w.asks = append(w.asks, "millrace_stands") // by savepoints, each time
	}
	return w
}

// watch has every call noted, and the n-th INSERT of messages answered by broken.
func (w *wire) watch(n int, broken func() error) {
	w.calls, w.inserts = nil, 0
	w.faults.Set(faults.Plan{Before: func(_ context.Context, call string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		call = strings.Join(strings.Fields(call), " ")
		if strings.HasPrefix(call, "NOTIFY") || slices.ContainsFunc(w.asks, func(a string) bool { return strings.Contains(call, a) }) {
			return nil
		}
		if !strings.HasPrefix(call, "INSERT INTO millrace_outbox ") {
			w.calls = append(w.calls, call)
			return nil
		}
		w.calls = append(w.calls, fmt.Sprintf("INSERT(%d)", 1+strings.Count(call, "), (")))
		if w.inserts++; w.inserts == n {
			return broken()
		}
		return nil
	}})
}

func (w *wire) seen() string {
	w.faults.Set(faults.Plan{})
	return strings.Join(w.calls, " ")
}

func statements(t *testing.T, db *testdb.DB) {
	const (
		save = "SAVEPOINT millrace_outbox "
		keep = " RELEASE SAVEPOINT millrace_outbox"
	)
	w := newWire(t, db)
	for _, c := range []struct {
		messages, bytes int
		inTx, alone     string
	}{
		{0, 0, "", ""},
		{1, 0, "INSERT(1)", "INSERT(1)"},
		{2, 0, "INSERT(2)", "INSERT(2)"},
		{20, 50 << 10, "INSERT(20)", "INSERT(20)"},
		{22, 50 << 10, save + "INSERT(20) INSERT(2)" + keep, "BEGIN " + save + "INSERT(20) INSERT(2)" + keep + " COMMIT"},
		{2, 1100 << 10, save + "INSERT(1) INSERT(1)" + keep, "BEGIN " + save + "INSERT(1) INSERT(1)" + keep + " COMMIT"},
		{500, 0, "INSERT(500)", "INSERT(500)"},
		{699, 0, save + "INSERT(600) INSERT(99)" + keep, "BEGIN " + save + "INSERT(600) INSERT(99)" + keep + " COMMIT"}, // few texts to prepare
		{1000, 0, "INSERT(1000)", ""},
		{1001, 0, save + "INSERT(1000) INSERT(1)" + keep, ""},
	} {
		w.each(behaviour{fmt.Sprintf("%d messages of %d bytes", c.messages, c.bytes), func(o *office) {
			out := o.publisher(standalone)
			publish := func(ctx context.Context) []string {
				msgs := many(ctx, c.messages)
				for _, m := range msgs {
					m.Payload = make([]byte, c.bytes)
				}
				w.watch(0, nil)
				require.NoError(o, out.Publish("orders", msgs...))
				return uuids(msgs)
			}
			var want []string
			require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				want = publish(ctx)
				assert.Equal(o, c.inTx, w.seen())
				return nil
			}))
			if c.alone != "" {
				want = append(want, publish(o.Context())...) // the first transaction asks what the default isolation is
				want = append(want, publish(o.Context())...)
				assert.Equal(o, c.alone, w.seen())
			}
			if c.messages > 0 {
				assert.Equal(o, want, o.stored(), "in the order of the call")
			}
		}})
	}
}
