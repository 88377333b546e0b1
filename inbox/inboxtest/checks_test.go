package inboxtest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

var checks = map[string]func(testing.TB, inboxtest.Scenario){
	"Duplicate":            inboxtest.Duplicate,
	"ReplaySameID":         inboxtest.ReplaySameID,
	"ExpiredRetention":     inboxtest.ExpiredRetention,
	"OffsetReset":          inboxtest.OffsetReset,
	"OldVersion":           inboxtest.OldVersion,
	"FutureVersion":        inboxtest.FutureVersion,
	"HeldThenReleased":     inboxtest.HeldThenReleased,
	"Collision":            inboxtest.Collision,
	"ConcurrentCopies":     inboxtest.ConcurrentCopies,
	"Rebalance":            inboxtest.Rebalance,
	"CrashBeforeCommit":    inboxtest.CrashBeforeCommit,
	"CrashAfterCommit":     inboxtest.CrashAfterCommit,
	"SideEffectThenCrash":  inboxtest.SideEffectThenCrash,
	"InterruptedStatement": inboxtest.InterruptedStatement,
	"Panics":               inboxtest.Panics,
	"StaleClaim":           inboxtest.StaleClaim,
	"ReplayMode":           inboxtest.ReplayMode,
}

func TestARightHandlerPassesEachCheck(t *testing.T) {
	for _, name := range testdb.Sample(t, 3, slices.Sorted(maps.Keys(checks))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario := accounts(right)
			if name == "ExpiredRetention" {
				for _, in := range scenario.Inputs {
					in.Message.Metadata.Set("ce_time", time.Now().Add(-24*time.Hour).Format(time.RFC3339))
				}
			}
			if name == "ReplayMode" {
				scenario.Rebuild = emptyAccounts
			}
			checks[name](t, scenario)
		})
	}
}

// What a process did before it failed to start is in the story; of the others, only what they did from then on.
func TestTheStoryOfAProcessThatDoesNotStart(t *testing.T) {
	starts := 0
	scenario := accounts(func(p *inboxtest.Process, store *inbox.Store) error {
		starts++
		_, err := p.DB.ExecContext(t.Context(), []string{`UPDATE accounts SET balance = 0`, `DELETE FROM missing`}[starts/3]) // it is played without a fault first
		return errors.Join(err, right(p, store))
	})
	heard := &heard{TB: t}
	inboxtest.Replay(heard, scenario, "crash before m1 COMMIT")
	assert.Contains(t, heard.String(), "the service does not start")
	assert.Regexp(t, `process 2  start DELETE missing .*error: .*no such table`, heard.String())
	assert.NotContains(t, heard.String(), "start UPDATE accounts")
}

func emptyAccounts(ctx context.Context, db *sqlx.DB) error {
	_, err := db.ExecContext(ctx, `UPDATE accounts SET balance = 0`)
	return err
}

func right(p *inboxtest.Process, store *inbox.Store) error {
	p.Router.AddMiddleware(inboxOf(store))
	p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, book)
	return nil
}

// A handler that sets the balance to what the last message says minds every disorder; one
// that adds to it minds what comes twice.
func TestAWrongHandlerFailsEachCheck(t *testing.T) {
	adds := plain(func(p *inboxtest.Process, msg *message.Message) error { return add(msg, p.DB) })
	sets := plain(func(p *inboxtest.Process, msg *message.Message) error {
		_, err := p.DB.ExecContext(msg.Context(), `UPDATE accounts SET balance = `+string(msg.Payload)+` WHERE id = 1`)
		return err
	})
	charges := plain(func(p *inboxtest.Process, msg *message.Message) error {
		return p.External(msg.Context(), "bank", func() error { return add(msg, p.DB) })
	})
	inTx := plain(inTxOf)
	early := plain(func(p *inboxtest.Process, msg *message.Message) error {
		msg.Ack()
		return inTxOf(p, msg)
	})
	for name, wrong := range map[string]struct {
		wire func(*inboxtest.Process, *inbox.Store) error
		want any
	}{
		"Duplicate":           {adds, 15},
		"ReplaySameID":        {adds, 15},
		"ExpiredRetention":    {right, nil}, // its messages carry no time
		"OffsetReset":         {adds, 15},
		"OldVersion":          {sets, 5},
		"FutureVersion":       {sets, 5},
		"HeldThenReleased":    {sets, 5},
		"Collision":           {adds, 15},
		"ConcurrentCopies":    {adds, 15},
		"Rebalance":           {adds, 15},
		"CrashBeforeCommit":   {early, 15},
		"CrashAfterCommit":    {inTx, 15},
		"SideEffectThenCrash": {charges, 15},
		"StaleClaim":          {adds, 15},
		"ReplayMode":          {right, nil}, // it adds again what it has forgotten
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heard := &heard{TB: t}
			scenario := accounts(wrong.wire)
			if wrong.want != nil {
				scenario.Want = wrong.want
			}
			checks[name](heard, scenario)
			assert.NotEmpty(t, heard.String(), "nothing was found")
		})
	}
}

// A check that finds nothing to try proves nothing, and says so.
func TestACheckThatTriesNothing(t *testing.T) {
	silent := plain(func(*inboxtest.Process, *message.Message) error { return nil })
	adds := plain(func(p *inboxtest.Process, msg *message.Message) error { return add(msg, p.DB) })
	for name, c := range map[string]struct {
		wire func(*inboxtest.Process, *inbox.Store) error
		want string
	}{
		"FutureVersion":        {adds, "Inputs has fewer than two messages"},
		"ConcurrentCopies":     {silent, "the service makes no call for a message"},
		"Rebalance":            {silent, "the service makes no call for a message"},
		"CrashBeforeCommit":    {adds, "the service commits no transaction"},
		"CrashAfterCommit":     {adds, "the service commits no transaction"},
		"InterruptedStatement": {adds, "the service runs no statement in a transaction"},
		"SideEffectThenCrash":  {adds, "the service publishes nothing, and makes no call by Process.External"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heard := &heard{TB: t}
			s := accounts(c.wire)
			s.Inputs, s.Want = s.Inputs[:1], nil
			checks[name](heard, s)
			assert.Contains(t, heard.String(), "nothing to try: "+c.want)
		})
	}
}

// A copy with another payload that is refused at each delivery is right if it leaves nothing behind.
func TestACollisionThatIsRefused(t *testing.T) {
	once := func(msg *message.Message, db sqlx.ExecerContext) error {
		_, err := db.ExecContext(msg.Context(), `INSERT INTO once (uuid, amount) VALUES ('`+msg.UUID+`', 0)`)
		return err
	}
	behindInbox := func(handler func(p *inboxtest.Process, msg *message.Message) error) func(*inboxtest.Process, *inbox.Store) error {
		return func(p *inboxtest.Process, store *inbox.Store) error {
			p.Router.AddMiddleware(millrace.Inbox{
				Store: store, Key: inbox.ByPayload(), Timeout: timeout, Options: inbox.Options{RecordFailures: true},
			}.Middleware)
			p.Router.AddConsumerHandler("book", "payments", p.Subscriber, func(msg *message.Message) error { return handler(p, msg) })
			return nil
		}
	}
	onceInTx := func(msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		return once(msg, tx)
	}
	for name, c := range map[string]struct {
		wire func(*inboxtest.Process, *inbox.Store) error
		want string
	}{
		"without effects": {wire: plain(func(p *inboxtest.Process, msg *message.Message) error {
			if err := once(msg, p.DB); err != nil {
				return err
			}
			return add(msg, p.DB)
		})},
		"without effects, and recorded as failed": {wire: behindInbox(func(_ *inboxtest.Process, msg *message.Message) error {
			return errors.Join(addInTx(msg), onceInTx(msg))
		})},
		"with an effect before": {
			wire: plain(func(p *inboxtest.Process, msg *message.Message) error {
				return errors.Join(add(msg, p.DB), once(msg, p.DB))
			}),
			want: "with another payload: I1, I2: the ledger is",
		},
		"with a write outside of the transaction": {
			wire: behindInbox(func(p *inboxtest.Process, msg *message.Message) error {
				err := onceInTx(msg)
				if err == nil {
					return addInTx(msg)
				}
				_, noted := p.DB.ExecContext(msg.Context(), `INSERT INTO bookings (uuid, amount) VALUES ('refused', 0)`)
				return errors.Join(err, noted)
			}),
			want: "written outside of the inbox's transaction: INSERT INTO bookings",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heard := &heard{TB: t}
			inboxtest.Collision(heard, ledger(accounts(c.wire)))
			if c.want == "" {
				assert.Empty(t, heard.String())
			}
			assert.Contains(t, heard.String(), c.want)
		})
	}
}

// A consumer that never forgets has no retention that could expire.
func TestExpiredRetentionOfAConsumerThatKeepsAll(t *testing.T) {
	inboxtest.ExpiredRetention(t, accounts(func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout, Options: inbox.Options{Retention: inbox.Forever}}.Middleware)
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, addInTx)
		return nil
	}))
}

// inTxOf adds a payment in a transaction that knows nothing of messages.
func inTxOf(p *inboxtest.Process, msg *message.Message) error {
	tx, err := p.DB.BeginTxx(context.WithoutCancel(msg.Context()), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if err := add(msg, tx); err != nil {
		return err
	}
	return tx.Commit()
}
