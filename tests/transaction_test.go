package tests_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// transactionBodies: what handlers do with the transaction that is not theirs to end.
var transactionBodies = []testdb.Body{
	{Name: "a handler that commits, then succeeds", Why: "the claim token tells: it counts as completed, loudly", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			_, err := effect(msg)
			return nil, errors.Join(err, end(msg, (*sqlx.Tx).Commit))
		})
		msg := newMessage("x")
		if refusesCommits(b.db) {
			rig.MustFail(t, h, again(msg), inbox.ErrTxEndedByHandler)
			assert.Equal(t, 0, b.effects(), "only our COMMIT passes")
			assert.Equal(t, 1, b.events.Count("ended tx"))
			return
		}
		must(t, h, again(msg))
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 1, b.events.Count("ended tx"))
	})},
	{Name: "a handler that commits, then fails", Why: "the claim is taken back, and the message set failed, loudly",
		Run: testdb.With(newBed, commitsThenFails(func(msg *message.Message) error { return end(msg, (*sqlx.Tx).Commit) }))},
	{Name: "a handler that rolls back, then succeeds", Why: "a success without effects is not a success", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(atFirst(func(msg *message.Message) ([]*message.Message, error) {
			_, err := effect(msg)
			return nil, errors.Join(err, end(msg, (*sqlx.Tx).Rollback))
		}))
		msg := newMessage("x")
		rig.MustFail(t, h, again(msg), inbox.ErrTxEndedByHandler)
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a raw COMMIT, then a failure", Why: "the claim token tells, whatever database/sql believes",
		Run: testdb.With(newBed, commitsThenFails(func(msg *message.Message) error { return raw(msg, "COMMIT") }))},
	{Name: "a handler that leaves rows open", Why: "it fails as a handler, not as if the database were away", Run: testdb.With(newBed, leavesRowsOpen)},
	{Name: "an error of the handler's own", Why: "it is named, not explained as one of ours", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		err := rig.Failure(t, b.inbox(func(*message.Message) ([]*message.Message, error) { return nil, io.EOF }), newMessage("x"), io.EOF)
		require.NotErrorIs(t, err, inbox.ErrUnavailable)
		err = rig.Failure(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			return nil, raw(msg, "SELECT * FROM nowhere")
		}), newMessage("x"))
		require.NotErrorIs(t, err, inbox.ErrNotMigrated)
	})},
	{Name: "a failed message behind a wait", Why: "TwinWait counts waiting for a twin, nothing else", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		const twinWait = 6 * time.Second // long for a statement of ours, on a busy disk too
		settings := []func(*millrace.Inbox){on(b.newStore(pool.DB, inbox.Config{})), func(i *millrace.Inbox) {
			i.RecordFailures, i.TwinWait = true, twinWait
		}}
		msg := newMessage("x")
		rig.MustFail(t, b.inbox(alwaysFails, settings...), again(msg), errBoom)
		pool.Set(faults.Plan{Before: faults.At("outcome_topic", func() error { // the lookup, between claim and retake
			pool.Set(faults.Plan{})
			<-time.After(twinWait + 100*time.Millisecond)
			return nil
		})})
		must(t, b.inbox(effect, settings...), again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a copy that fails after a handler ran DDL, and before it fails", Why: "the claim that DDL committed is taken back all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect != "mysql" { // elsewhere the copy waits for the handler
			return
		}
		queue := rig.Queue(b, b.process(), inbox.QueueConfig{Consumer: "billing"})
		msg := newMessage("x")
		h := b.inbox(atFirst(func(msg *message.Message) ([]*message.Message, error) {
			require.NoError(t, rig.Exec(msg.Context(), `CREATE TABLE stray (id INTEGER)`))
			_, fail := queue.Straight("orders", again(msg))
			_, err := fail(t.Context())
			return nil, errors.Join(errBoom, err)
		}))
		rig.MustFail(t, h, again(msg), inbox.ErrTxEndedByHandler)
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects(), "a message that failed counts as handled")
	})},
	{Name: "a handler that runs DDL, then fails", Why: "where DDL commits, the claim it committed is taken back", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(atFirst(func(msg *message.Message) ([]*message.Message, error) {
			return nil, errors.Join(errBoom, rig.Exec(msg.Context(), `CREATE TABLE stray (id INTEGER)`))
		}))
		msg := newMessage("x")
		err := rig.Failure(t, h, again(msg), errBoom)
		commits := b.db.Dialect == "mysql"
		assert.Equal(t, commits, errors.Is(err, inbox.ErrTxEndedByHandler))
		assert.Equal(t, commits, b.events.Count("ended tx") == 1)
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
		b.nothingOpen()
	})},
	{Name: "a handler that runs DDL, then succeeds", Why: "it counts as completed, once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			if err := rig.Exec(msg.Context(), `CREATE TABLE stray (id INTEGER)`); err != nil {
				return nil, err
			}
			return effect(msg)
		})
		msg := newMessage("x")
		must(t, h, again(msg))
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, b.db.Dialect == "mysql", b.events.Count("ended tx") == 1, "MariaDB says that it committed")
	})},
	{Name: "a handler that swallows an SQL error", Why: "a transaction that the server aborted is never reported as committed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for n, result := range [][]byte{nil, []byte("stored by a statement of ours")} {
			h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
				if _, err := effect(msg); err != nil {
					return nil, err
				}
				_ = raw(msg, `INSERT INTO nowhere (id) VALUES (1)`)
				if result == nil {
					return nil, nil
				}
				return nil, inbox.SetResult(msg.Context(), result)
			})
			_, err := h(newMessage("x"))
			if b.db.Dialect == "postgres" {
				require.ErrorContains(t, err, "a statement failed and its error was not returned")
				require.ErrorContains(t, err, "SAVEPOINT")
				assert.Equal(t, 0, b.effects())
				continue
			}
			require.NoError(t, err, "elsewhere a failed statement leaves the transaction as it was")
			assert.Equal(t, n+1, b.effects())
		}
	})},
	{Name: "a statement that outlasts the handler's Timeout", Why: "the Timeout is named, not the connection that a driver closes", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		begun := false
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			begun = true
			return nil, raw(msg, long(b.db))
		}, func(i *millrace.Inbox) { i.Timeout = time.Second })
		rig.Eventually(t, "no connection is named", func() bool { // as it is where a new one takes longer than a second
			b.spare()
			begun = false
			_, err := h(newMessage("x"))
			if !begun {
				return false
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "Timeout, 1s, ran out")
			return !strings.Contains(err.Error(), "the connection to the database was lost")
		})
	})},
	{Name: "a statement that outlasts a deadline of the handler's own", Why: "the deadline is named, not the connection that a driver closes at it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		err := rig.Failure(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithTimeout(msg.Context(), 200*time.Millisecond)
			defer cancel()
			return nil, errors.Join(rig.Exec(ctx, long(b.db)), ctx.Err())
		}), newMessage("x"), context.DeadlineExceeded)
		assert.NotContains(t, err.Error(), "the connection to the database was lost")
		assert.Equal(t, inbox.ReasonTimeout, b.events.Last("failed").Reason)
	})},
	{Name: "a statement without the message's context", Why: "Timeout waits for it, as docs/pitfalls.md says", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		statement := map[string]string{"postgres": `SELECT pg_sleep(3)`, "mysql": `SELECT SLEEP(3)`}[b.db.Dialect]
		if statement == "" { // SQLite cannot sleep
			return
		}
		must(t, b.inbox(effect), newMessage("warm up"))
		ended := false
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			if err := end(msg, func(tx *sqlx.Tx) error {
				_, err := tx.ExecContext(context.Background(), statement)
				return err
			}); err != nil {
				return nil, err
			}
			ended = true
			rig.Eventually(t, "Timeout has run out", func() bool { return msg.Context().Err() != nil }) // long ago, but for a late timer
			return nil, nil
		}, func(i *millrace.Inbox) { i.Timeout = 2 * time.Second })
		rig.Eventually(t, "it runs to its end", func() bool { // on a machine that does not stand still meanwhile
			if _, err := h(newMessage("x")); ended {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			return ended
		})
	})},
	{Name: "the transaction used after the handler returned", Why: "it refuses use after it ended", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var ctx context.Context
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			ctx = msg.Context()
			return effect(msg)
		})
		msg := newMessage("x")
		must(t, h, msg)
		_, err := inbox.Tx(ctx)
		require.ErrorIs(t, err, inbox.ErrTxEnded)
		require.ErrorIs(t, inbox.SetResult(ctx, 1), inbox.ErrTxEnded)
		_, err = inbox.Tx(msg.Context())
		require.ErrorIs(t, err, inbox.ErrNoTx)
	})},
	{Name: "a handler that forgets its transaction", Why: "warned about once, counted, refused with RequireTx", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effectless)
		must(t, h, newMessage("x"))
		must(t, h, newMessage("x"))
		assert.Equal(t, 2, b.events.Count("forgotten tx"))
		assert.Len(t, b.events.Logs(), 1)
		strict := b.inbox(effectless, func(i *millrace.Inbox) { i.RequireTx = true; i.Consumer = "strict" })
		rig.MustFail(t, strict, newMessage("x"), inbox.ErrTxNotUsed)
	})},
	{Name: "returned messages, and no topic for them", Why: "the error says so, and each delivery would end with it, so it is paced", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{newMessage("invoice")}, apply(msg.Context(), msg.UUID)
		})
		began := time.Now()
		for range 4 {
			rig.MustFail(t, h, newMessage("x"), "the router was given no topic to publish them to: add it with AddHandler")
		}
		assert.GreaterOrEqual(t, time.Since(began), 750*time.Millisecond, "50, 100, 200 and 400 ms at least")
		assert.Zero(t, b.effects())
	})},
	{Name: "a returned message that is nil", Why: "the error says which, with and without an outbox", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, outbox := range map[string]message.Publisher{"without": nil, "with": rig.NewOutbox(t, b.db.DB, box.Config{})} {
			got := make(chan error, 1)
			i := b.patient()
			i.Outbox = outbox
			s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{newMessage("invoice"), nil}, apply(msg.Context(), msg.UUID)
			}, tells(got), i.Middleware)
			assert.False(t, s.deliver(newMessage("x")), name)
			require.ErrorContains(t, rig.Within(t, got, "the handler returns"), "the handler returned a nil message, number 2 of 2", name)
			assert.Zero(t, b.effects(), name)
		}
	})},
	{Name: "OnBegin", Why: "runs first in the handler's transaction, and its error is the handler's", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var fail error
		h := b.inbox(effect, func(i *millrace.Inbox) {
			i.OnBegin = func(ctx context.Context, tx *sqlx.Tx, msg *message.Message) error {
				_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO effects (uuid, consumer) VALUES (?, 'begin')`), msg.UUID)
				return errors.Join(err, fail)
			}
		})
		must(t, h, newMessage("x"))
		assert.Equal(t, 2, b.effects())
		fail = errBoom
		rig.MustFail(t, h, newMessage("x"), errBoom)
		assert.Equal(t, 2, b.effects())
	})},
	{Name: "failure records", Why: "attempts and last error are kept on request, and go with the success", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(failing(3), recorded), newMessage("payload")
		msg.Metadata = message.Metadata{"name": "OrderPlaced", "binary": "\xff\x00", "ce_dataschema": "v2"}
		for range 3 {
			rig.MustFail(t, h, again(msg), errBoom)
		}
		story := rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.Open, 1)
		open := story.Open[0]
		assert.Equal(t, 3, open.Attempts)
		assert.Equal(t, "boom", open.LastError)
		assert.Equal(t, "OrderPlaced", open.EventType)
		assert.Equal(t, "v2", open.EventVersion)
		assert.Equal(t, msg.Metadata, open.Metadata)
		assert.Equal(t, []byte(msg.Payload), open.Payload)
		assert.Equal(t, 0, b.effects())

		cancelled, cancel := context.WithCancel(t.Context())
		closing := again(msg)
		closing.SetContext(cancelled)
		stop := b.inbox(func(*message.Message) ([]*message.Message, error) { cancel(); return nil, errBoom },
			on(b.process()), recorded)
		rig.MustFail(t, stop, closing, errBoom)
		assert.Equal(t, 3, b.count(`SELECT attempts FROM millrace_messages`), "a closed delivery is not an attempt")

		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
		b.nothingOpen()
	})},
	{Name: "an open row that changes while its handler runs", Why: "the row is deleted last, fenced by its status: else roll back", Run: func(t *testing.T, db *testdb.DB) {
		if db.Dialect == "sqlite" {
			return // a handler's transaction excludes every other writer
		}
		b := newBed(t, db)
		msg := newMessage("x")
		rig.MustFail(t, b.inbox(alwaysFails, recorded), again(msg), errBoom)
		h := b.inbox(func(m *message.Message) ([]*message.Message, error) {
			b.exec(`UPDATE millrace_messages SET status = ?`, admin.Parked)
			return effect(m)
		}, recorded)
		rig.MustFail(t, h, again(msg), inbox.ErrLost)
		assert.Equal(t, 0, b.effects())
		must(t, b.inbox(effect), again(msg))
		assert.Equal(t, 0, b.effects(), "a parked message waits for an operator")
	}},
	{Name: "clientFoundRows", Why: "a duplicate must not look fresh by a flag of the connection", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, flag := range []string{"true", "false"} {
			var opts []testdb.Option
			if b.db.Dialect == "mysql" {
				opts = append(opts, testdb.Params("clientFoundRows", flag))
			}
			store := on(b.process(opts...))
			msg := newMessage("x")
			must(t, b.inbox(effect, store), again(msg))
			must(t, b.inbox(effect, on(b.process(opts...))), again(msg))
			assert.Equal(t, 1, b.effectsOf(msg.UUID))

			failed := newMessage("x")
			rig.MustFail(t, b.inbox(alwaysFails, store, recorded), again(failed), errBoom)
			must(t, b.inbox(effect, store, recorded), again(failed))
			must(t, b.inbox(effect, on(b.process(opts...))), again(failed))
			assert.Equal(t, 1, b.effectsOf(failed.UUID))
			b.nothingOpen()
		}
	})},
}

// commitsThenFails has a handler commit and fail, and then succeed.
func commitsThenFails(commit func(*message.Message) error) func(*testing.T, *bed) {
	return func(t *testing.T, b *bed) {
		h := b.inbox(atFirst(func(msg *message.Message) ([]*message.Message, error) {
			_, err := effect(msg)
			return nil, errors.Join(errBoom, err, commit(msg))
		}))
		msg := newMessage("x")
		rig.MustFail(t, h, again(msg), errBoom, inbox.ErrTxEndedByHandler)
		assert.Equal(t, 1, b.events.Count("ended tx"))
		committed := 1
		if !refusesCommits(b.db) {
			committed = 2 // the first by the handler, the second by us
			story := rig.Story(t, b.store, msg.UUID)
			require.Len(t, story.Open, 1)
			assert.Equal(t, admin.FailedRetryable, story.Open[0].Status)
			assert.Contains(t, story.Open[0].LastError, "boom")
		}
		must(t, h, again(msg))
		assert.Equal(t, committed, b.effects(), "the redelivery was taken for a duplicate")
		assert.Equal(t, 1, b.events.Count("ended tx"))
		b.nothingOpen()
	}
}

// long is a statement that takes many times as long as a test waits for it.
func long(db *testdb.DB) string {
	return map[string]string{
		"postgres": `SELECT pg_sleep(20)`, "mysql": `SELECT SLEEP(20)`,
		"sqlite": `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000000) SELECT MAX(i) FROM n`,
	}[db.Dialect]
}

// spare has the pool keep a connection for who asks while another one is closed.
func (b *bed) spare() {
	b.Helper()
	for range 2 {
		c, err := b.db.Conn(b.Context())
		require.NoError(b, err)
		defer func() { assert.NoError(b, c.Close()) }()
	}
}

// refusesCommits reports whether the inbox can keep a handler from committing.
func refusesCommits(db *testdb.DB) bool { return db.Dialect == "sqlite" }

func raw(msg *message.Message, statement string) error {
	return rig.Exec(msg.Context(), statement)
}

func end(msg *message.Message, how func(*sqlx.Tx) error) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	return how(tx)
}
