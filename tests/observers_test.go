package tests_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestObserversAreToldWhy(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, observerBodies)
}

var observerBodies = []testdb.Body{
	{Name: "why a run failed", Why: "a small set, to count by", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		fails := func(err error) message.HandlerFunc {
			return func(*message.Message) ([]*message.Message, error) { return nil, err }
		}
		for reason, h := range map[string]message.HandlerFunc{
			inbox.ReasonError:       fails(errBoom),
			inbox.ReasonTerminal:    fails(inbox.Terminal(errBoom)),
			inbox.ReasonTxNotUsed:   fails(nil),
			inbox.ReasonClosing:     fails(context.Canceled),
			inbox.ReasonUnknownType: fails(inbox.Terminal(errors.Join(inbox.ErrUnknownType, errBoom))),
			inbox.ReasonRetryAfter:  fails(inbox.RetryAfter(errBoom, time.Second)),
			inbox.ReasonPanic:       crash,
			inbox.ReasonTimeout: func(msg *message.Message) ([]*message.Message, error) {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			},
			inbox.ReasonTxEnded: func(msg *message.Message) ([]*message.Message, error) {
				assert.Equal(t, refusesCommits(b.db), end(msg, (*sqlx.Tx).Commit) != nil)
				return nil, errBoom
			},
		} {
			var failed, received int
			deliver := func() (told bool) {
				b.spare()
				failed, received = b.events.Count("failed"), b.events.Count("received")
				b.within(reason, func() {
					_, _ = b.inbox(h, func(i *millrace.Inbox) {
						i.RequireTx = reason == inbox.ReasonTxNotUsed
						if reason == inbox.ReasonTimeout {
							i.Timeout = time.Second
						}
					})(newMessage("x"))
				})
				return b.events.Count("failed") > failed && b.events.Last("failed").Reason == reason
			}
			for tries := 1; !deliver() && reason == inbox.ReasonTimeout && tries < 20; tries++ { // on a busy machine the database took it
				continue
			}
			require.Equal(t, failed+1, b.events.Count("failed"), reason)
			e := b.events.Last("failed")
			assert.Equal(t, reason, e.Reason, "%v", e.Err)
			assert.Error(t, e.Err)
			assert.Equal(t, received+1, b.events.Count("received"))
		}
	})},
	{Name: "a panic that is recovered further in", Why: "it is one all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(func(*message.Message) ([]*message.Message, error) { panic("!") },
			b.patient().Middleware, middleware.Recoverer)
		assert.False(t, s.deliver(newMessage("x")))
		assert.Equal(t, inbox.ReasonPanic, b.events.Last("failed").Reason)
	})},
	{Name: "what is received", Why: "each delivery once, copies too", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		msg.Metadata.Set("name", "paid")
		for range 3 {
			must(t, b.inbox(effect), again(msg))
		}
		assert.Equal(t, 3, b.events.Count("received"))
		e := b.events.Last("received")
		assert.Equal(t, []string{"billing", "paid", msg.UUID}, []string{e.Consumer, e.Type, e.UUID})
		assert.Equal(t, inbox.ReasonSettled, b.events.Last("duplicate").Reason)
	})},
	{Name: "what the janitor tells", Why: "what it deleted, and how old the rest is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		handle := func(ages ...time.Duration) {
			for _, age := range ages {
				msg := newMessage("x")
				must(t, b.inbox(effect), msg)
				b.exec(`UPDATE millrace_claims SET processed_at = processed_at - ? WHERE token = (
					SELECT token FROM (SELECT token FROM millrace_claims ORDER BY processed_at DESC LIMIT 1) newest)`, age.Microseconds())
			}
		}
		handle(10*day, 9*day, 3*day, 2*day, 2*time.Hour, 0, 0, 0)
		b.purge(2)
		e := b.events.Last("purged")
		assert.Equal(t, 2, e.Count)
		require.NoError(t, e.Err)
		got := map[string]int{}
		for _, e := range b.events.All("claims") {
			assert.Equal(t, "billing", e.Consumer)
			got[e.Reason] = e.Count
		}
		assert.Equal(t, map[string]int{inbox.ReasonHour: 3, inbox.ReasonDay: 1, inbox.ReasonWeek: 2, inbox.ReasonOlder: 0}, got)

		failing := b.newStore(b.db.DB, inbox.Config{Archive: func(context.Context, []inbox.ExpiredClaim) error { return errBoom }})
		b.age(8 * day)
		_, err := failing.Purge(t.Context())
		require.ErrorIs(t, err, errBoom)
		assert.ErrorIs(t, b.events.Last("purged").Err, errBoom)
	})},
}
