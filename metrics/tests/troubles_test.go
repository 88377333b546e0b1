package tests_test

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
)

// troubles are what goes wrong, each with the alerts that fire for it. The cause returns what mends it.
var troubles = []struct {
	job, consumer string
	cause         func(s *service, consumer string) (mend func())
	fires         []string
}{
	{"shop", "colliding", collides, []string{"MillraceCollision", "MillraceParked"}},
	{"shop", "refusing", collidesRefused, []string{"MillraceCollision"}},
	{"shop", "doubling", losesLease, []string{"MillraceDoubleEffect"}},
	{"shop", "ending", endsTransaction, []string{"MillraceEndedTransaction"}},
	{"shop", "gapped", skipsVersion, []string{"MillraceSequenceGap"}},
	{"shop", "producing", cannotPublish, []string{"MillraceUnsettledOutcomes"}},
	{"shop", "doubting", doubtsStep, []string{"MillraceStepInDoubt"}},
	{"shop", "forgetting", forgetsEarly, []string{"MillraceRetentionBelowWindow"}},
	{"shop", "copied", getsCopies, []string{"MillraceDuplicateSpike"}},
	{"shop", "failing", fails, []string{"MillracePendingAge"}},
	{"shop", "orphaned", dies, []string{"MillraceStaleInProgress"}},
	{"shop", "parking", parks, []string{"MillraceParked"}},
	{"shop", "terminal", failsForGood, []string{"MillraceFailedTerminal"}},
	{"shop", "unknowing", knowsNoType, []string{"MillraceUnknownType", "MillraceFailedTerminal"}},
	{"shop", "unserved", isNotServed, []string{"MillraceNotServed", "MillracePendingAge"}},
	{"shop", "paused", isPaused, []string{"MillracePaused"}},
	{"shop", "careless", forgetsTx, []string{"MillraceForgottenTransaction"}},
	{"shop", "mailing", replays, []string{"MillraceReplayIntoSideEffects", "MillraceParked"}},
	{"shop", "", losesBroker, []string{"MillraceOutboxParked", "MillraceBrokerOut", "MillraceRelayLag"}},
	{"ledger", "storing", cannotStore, []string{"MillraceDatabaseDown"}},
	{"ledger", "cut", losesDatabase, []string{"MillraceDatabaseDown"}},
	{"ledger", "", nil, []string{"MillraceCollectorErrors", "MillraceCleanupFailing", "MillraceCleanupNotRunning"}},
	{"mail", "", purgesNothing, []string{"MillraceCleanupNotRunning"}},
	{"mail", "", losesRelay, []string{"MillraceShardsUnowned"}},
}

var ann = admin.Operator{Name: "ann", Reason: "the alert fired"}

func collides(s *service, consumer string) func() {
	h := s.inbox(consumer, inbox.Options{}, takes)
	msg := newMessage("paid", "x")
	s.handles(h, msg)
	msg.Payload = []byte("y")
	s.handles(h, msg)
	return func() { require.NoError(s, s.ops().Discard(s.Context(), s.opens(consumer, admin.Parked).ID, ann)) }
}

func collidesRefused(s *service, consumer string) func() {
	h := s.inbox(consumer, inbox.Options{OnCollision: inbox.CollisionFail}, takes)
	msg := newMessage("paid", "x")
	s.handles(h, msg)
	msg.Payload = []byte("y")
	rig.MustFail(s, h, msg, inbox.ErrCollision)
	return func() {} // it is removed from its queue
}

// losesLease: somebody empties the table while the handler runs.
func losesLease(s *service, consumer string) func() {
	h := millrace.Deduplicate{Claims: s.store.Leases(), Consumer: consumer}.Middleware(func(*message.Message) ([]*message.Message, error) {
		s.db.Do(s, `DELETE FROM millrace_leases`)
		return nil, nil
	})
	rig.MustFail(s, h, newMessage("paid", "x"), inbox.ErrLeaseLost)
	return func() {}
}

func endsTransaction(s *service, consumer string) func() {
	h := s.inbox(consumer, inbox.Options{}, func(msg *message.Message) ([]*message.Message, error) {
		tx, err := inbox.Tx(msg.Context())
		return nil, errors.Join(err, tx.Commit())
	})
	rig.MustFail(s, h, newMessage("paid", "x"), inbox.ErrTxEndedByHandler)
	return func() {}
}

func skipsVersion(s *service, consumer string) func() {
	feed := s.serve(pubsub.Durable{Consumer: consumer}, s.inbox(consumer, inbox.Options{}, millrace.VersionGate{}.Middleware(takes)))
	change := func(version int64) *message.Message {
		msg := newMessage("changed", "x")
		outbox.Stamp(msg, "account", version)
		return msg
	}
	s.sends(feed, change(2))
	s.opens(consumer, admin.Held)
	return func() { s.sends(feed, change(1)) }
}

func cannotPublish(s *service, consumer string) func() {
	s.broker.FailWith(errBoom)
	defer s.broker.FailWith(nil)
	feed := rig.NewFeed()
	s.route(consumer, feed, s.inbox(consumer, inbox.Options{}, func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{newMessage("billed", "x")}, nil
	}))
	msg := newMessage("paid", "x")
	feed.Send(s, msg)
	assert.False(s, rig.Answer(s, msg), "it is nacked, and not delivered again")
	return func() {
		all, err := s.ops().Unsettled(s.Context(), admin.ConsumerFilter{Consumer: consumer}, 0, 10)
		require.NoError(s, err)
		require.Len(s, all, 1)
		require.NoError(s, s.ops().Redispatch(s.Context(), all[0], ann, s.out))
	}
}

func doubtsStep(s *service, consumer string) func() {
	step := inbox.Step{Name: "mail", Do: func(context.Context, string) ([]byte, error) { return nil, errBoom }}
	h := millrace.Deduplicate{Claims: s.store.Leases(), Consumer: consumer}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := step.Run(msg.Context())
		return nil, err
	})
	rig.MustFail(s, h, newMessage("paid", "x"), errBoom)
	return func() {
		all, err := s.ops().StepsInDoubt(s.Context(), 10)
		require.NoError(s, err)
		require.Len(s, all, 1)
		require.NoError(s, s.ops().DecideStep(s.Context(), all[0].ID, admin.StepWasDone, ann))
	}
}

func forgetsEarly(s *service, consumer string) func() {
	s.handles(s.inbox(consumer, inbox.Options{Retention: time.Hour, Window: 24 * time.Hour}, takes), newMessage("paid", "x"))
	return func() {
		restarted := *s
		restarted.store = rig.NewStore(s, s.db.DB, inbox.Config{WithoutPlugin: true})
		s.handles(restarted.inbox(consumer, inbox.Options{Window: 24 * time.Hour}, takes), newMessage("paid", "x"))
	}
}

func getsCopies(s *service, consumer string) func() {
	h, msg := s.inbox(consumer, inbox.Options{}, takes), newMessage("paid", "x")
	return again(s.T, 250*time.Millisecond, func() { _, _ = h(msg.Copy()) })
}

func fails(s *service, consumer string) func() {
	h, fix := until(errBoom)
	s.sends(s.serve(pubsub.Durable{Consumer: consumer, MinBackoff: time.Hour, MaxBackoff: time.Hour}, s.inbox(consumer, inbox.Options{}, h)),
		newMessage("paid", "x"))
	return func() { fix(); s.retries(consumer, admin.FailedRetryable) }
}

// dies: a process takes a message and is gone.
func dies(s *service, consumer string) func() {
	queue := rig.Queue(s, s.store, inbox.QueueConfig{Consumer: consumer, Lease: time.Second})
	require.NoError(s, queue.Put(s.Context(), "orders", newMessage("paid", "x")))
	_, err := queue.HandOut(s.Context(), rig.Take(s, queue, 1)...)
	require.NoError(s, err)
	return func() { s.serve(pubsub.Durable{Consumer: consumer}, s.inbox(consumer, inbox.Options{}, takes)) }
}

func parks(s *service, consumer string) func() {
	h, fix := until(errBoom)
	s.sends(s.serve(pubsub.Durable{Consumer: consumer, MaxAttempts: 1}, s.inbox(consumer, inbox.Options{}, h)), newMessage("paid", "x"))
	return func() { fix(); s.retries(consumer, admin.Parked) }
}

func failsForGood(s *service, consumer string) func() {
	h, fix := until(inbox.Terminal(errBoom))
	s.sends(s.serve(pubsub.Durable{Consumer: consumer}, s.inbox(consumer, inbox.Options{}, h)), newMessage("paid", "x"))
	return func() { fix(); s.retries(consumer, admin.FailedTerminal) }
}

func knowsNoType(s *service, consumer string) func() {
	h, _ := until(inbox.Terminal(inbox.ErrUnknownType))
	s.sends(s.serve(pubsub.Durable{Consumer: consumer}, s.inbox(consumer, inbox.Options{}, h)), newMessage("paid", "x"))
	return func() {
		_, err := s.ops().DiscardAll(s.Context(), admin.Filter{Consumer: consumer, Status: admin.FailedTerminal}, ann, admin.Pace{})
		require.NoError(s, err)
	}
}

func isNotServed(s *service, consumer string) func() {
	require.NoError(s, rig.Queue(s, s.store, inbox.QueueConfig{Consumer: consumer}).Put(s.Context(), "orders", newMessage("paid", "x")))
	return func() { s.serve(pubsub.Durable{Consumer: consumer}, s.inbox(consumer, inbox.Options{}, takes)) }
}

func isPaused(s *service, consumer string) func() {
	s.handles(s.inbox(consumer, inbox.Options{}, takes), newMessage("paid", "x"))
	require.NoError(s, s.ops().Pause(s.Context(), consumer, 0, ann))
	return func() { require.NoError(s, s.ops().Resume(s.Context(), consumer, 0, ann)) }
}

func forgetsTx(s *service, consumer string) func() {
	s.handles(s.inbox(consumer, inbox.Options{}, func(*message.Message) ([]*message.Message, error) { return nil, nil }), newMessage("paid", "x"))
	return func() {}
}

// replays: of two replayed messages that were refused, somebody has one handled.
func replays(s *service, consumer string) func() {
	feed := s.serve(pubsub.Durable{Consumer: consumer, Poll: 50 * time.Millisecond},
		s.inbox(consumer, inbox.Options{OnReplay: inbox.ReplayRefuse}, takes))
	replayed := func() {
		msg := newMessage("paid", "x")
		msg.Metadata.Set(inbox.ReplayField, "of May")
		s.sends(feed, msg)
	}
	replayed()
	refused := s.opens(consumer, admin.Parked)
	rig.Eventually(s, "its queue takes it", func() bool { return s.ops().Retry(s.Context(), refused.ID, ann, nil) == nil })
	rig.Eventually(s, "it is handled", func() bool { return len(rig.Find(s, s.store, admin.Filter{Consumer: consumer})) == 0 })
	replayed()
	return func() { require.NoError(s, s.ops().Discard(s.Context(), s.opens(consumer, admin.Parked).ID, ann)) }
}

// losesBroker: the broker refuses a message, and then is out.
func losesBroker(s *service, _ string) func() {
	s.broker.FailWith(outbox.Permanent(errBoom))
	require.NoError(s, s.out.Publish("large", newMessage("billed", "x")))
	var parked []outbox.Parked
	rig.Eventually(s, "it is parked", func() bool {
		parked, _ = s.out.Parked(s.Context(), 0, 10)
		return len(parked) == 1
	})
	s.broker.FailWith(errBoom)
	require.NoError(s, s.out.Publish("invoices", newMessage("billed", "x")))
	return func() {
		s.broker.FailWith(nil)
		require.NoError(s, s.out.Retry(s.Context(), parked[0].ID, outbox.Operator{Name: ann.Name, Reason: ann.Reason}))
	}
}

// cannotStore: the database, which is about to be lost, must have a message before its handler.
func cannotStore(s *service, consumer string) func() {
	feed := s.serve(pubsub.Durable{Consumer: consumer, Mode: pubsub.StoreFirst, MinBackoff: 100 * time.Millisecond}, s.inbox(consumer, inbox.Options{}, takes))
	var last *message.Message
	return again(s.T, 250*time.Millisecond, func() {
		if last != nil && !answered(last) {
			return // it waits for the database: more of them would be a backlog once it is back
		}
		last = newMessage("paid", "x")
		feed.Give(last)
	})
}

func answered(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

func losesDatabase(s *service, consumer string) func() {
	h := s.inbox(consumer, inbox.Options{}, takes)
	s.handles(h, newMessage("paid", "x"))
	s.wire.Cut()
	stop := again(s.T, 250*time.Millisecond, func() { rig.Handle(h, newMessage("paid", "x")) })
	return func() { stop(); s.wire.Mend() }
}

// purgesNothing: no process runs the inbox's background work.
func purgesNothing(s *service, _ string) func() { return func() { rig.Work(s, s.store) } }

// losesRelay: the relay's process dies, and with it its connections.
func losesRelay(s *service, _ string) func() {
	pool := s.db.Open(s)
	stop := s.relay(pool.DB)
	require.NoError(s, pool.Close())
	stop()
	return func() { s.relay(s.db.DB) }
}
