package policy_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

// service is a router with one handler, billing, by its rules.
type service struct {
	*testing.T
	feed *rig.Feed
	errs chan error

	mu  sync.Mutex
	ran []string
}

// serve starts a handler that notes what it is given, and then does what it is told.
func serve(t *testing.T, rules policy.Rules, w policy.Wiring, h message.HandlerFunc) *service {
	t.Helper()
	s := &service{T: t, feed: rig.NewFeed(), errs: make(chan error, 100)}
	router := newRouter(t)
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			s.errs <- err
			return produced, err
		}
	})
	wired, err := consumers(map[string]policy.Rules{"billing": rules}).Wire(router, w)
	require.NoError(t, err)
	sub, err := wired.Subscriber("billing", s.feed)
	require.NoError(t, err)
	router.AddHandler("billing", "orders", sub, "receipts", &rig.Publisher{}, func(msg *message.Message) ([]*message.Message, error) {
		s.mu.Lock()
		s.ran = append(s.ran, msg.UUID)
		s.mu.Unlock()
		return h(msg)
	})
	run(t, router)
	return s
}

// deliver delivers a message and returns what came of it.
func (s *service) deliver(msg *message.Message) (acked bool, err error) {
	s.Helper()
	s.feed.Send(s, msg)
	return rig.Answer(s, msg), <-s.errs
}

func (s *service) runs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.ran...)
}

func of(account, uuid string) *message.Message {
	msg := message.NewMessage(uuid, nil)
	msg.Metadata.Set("account", account)
	return msg
}

func takesTx(msg *message.Message) ([]*message.Message, error) {
	_, err := inbox.Tx(msg.Context())
	return nil, err
}

func nothing(*message.Message) ([]*message.Message, error) { return nil, nil }

// byAccount is a key that many messages have.
var byAccount = policy.Key{From: "metadata:account"}

func TestDedup(t *testing.T) {
	memory := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	store := newStore(t)
	for name, c := range map[string]struct {
		rules  policy.Rules
		wiring policy.Wiring
		leases *inbox.Leases
	}{
		"the store's":        {policy.Rules{}, policy.Wiring{Store: store}, store.Leases()},
		"in memory":          {policy.Rules{}, policy.Wiring{Store: newStore(t), Leases: memory}, memory},
		"of a store by name": {policy.Rules{Store: "eu"}, policy.Wiring{Store: newStore(t), Stores: map[string]*inbox.Store{"eu": store}, Leases: memory}, store.Leases()},
	} {
		t.Run(name, func(t *testing.T) {
			c.rules.Strategy, c.rules.Key, c.rules.Consumer = policy.Dedup, byAccount, name
			failures := 1
			s := serve(t, c.rules, c.wiring, func(*message.Message) ([]*message.Message, error) {
				if failures > 0 {
					failures--
					return nil, errors.New("once")
				}
				return nil, nil
			})
			for _, uuid := range []string{"1", "2", "3"} {
				acked, err := s.deliver(of("ada", uuid))
				require.Equal(t, uuid != "1", acked, err)
			}
			require.Equal(t, []string{"1", "2"}, s.runs())

			// Whoever else has the memory knows it too.
			ran := false
			again, err := c.leases.Handler(inbox.LeaseConfig{Name: name, Handler: "billing", Key: inbox.ByMetadata("account")},
				func(*message.Message) ([]*message.Message, error) { ran = true; return nil, nil })
			require.NoError(t, err)
			_, err = again(of("ada", "4"))
			require.NoError(t, err)
			require.False(t, ran)
		})
	}
}

func TestReplaysWhoseEffectsNobodyKeepsApart(t *testing.T) {
	for strategy, parked := range map[policy.Strategy]int{policy.Dedup: 0, policy.Inbox: 1} {
		store := newStore(t)
		s := serve(t, policy.Rules{Strategy: strategy, SideEffects: policy.AcceptDuplicates}, policy.Wiring{Store: store}, nothing)
		msg := of("ada", "1")
		msg.Metadata.Set(inbox.ReplayField, "of May")
		acked, err := s.deliver(msg)
		require.True(t, acked, err)
		require.Empty(t, s.runs(), strategy)
		found, err := admin.New(store).Find(t.Context(), admin.Filter{Status: admin.Parked}, 0, 10)
		require.NoError(t, err)
		require.Len(t, found, parked, strategy)
	}
}

func TestNone(t *testing.T) {
	s := serve(t, policy.Rules{Strategy: policy.None}, policy.Wiring{Store: newStore(t)}, nothing)
	for range 2 {
		_, err := s.deliver(of("ada", "1"))
		require.NoError(t, err)
	}
	require.Equal(t, []string{"1", "1"}, s.runs())
}

func TestIntentRefusesAHandlerThatStoresNothing(t *testing.T) {
	store := newStore(t)
	s := serve(t, policy.Rules{Strategy: policy.Intent}, policy.Wiring{Store: store, Outbox: &rig.Publisher{}}, nothing)
	_, err := s.deliver(of("ada", "1"))
	require.ErrorIs(t, err, inbox.ErrTxNotUsed)
}

// What a handler returns goes into the outbox of the store that its transaction is of.
func TestEachStoreHasItsOutbox(t *testing.T) {
	store, out, eu, euOut := newStore(t), &rig.Publisher{}, newStore(t), &rig.Publisher{}
	w := policy.Wiring{
		Store: store, Outbox: out, Stores: map[string]*inbox.Store{"eu": eu}, Outboxes: map[string]message.Publisher{"eu": euOut},
	}
	answer := func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("answer", nil)}, nil
	}
	for _, c := range []struct {
		rules policy.Rules
		into  *rig.Publisher
	}{{policy.Rules{Strategy: policy.Intent}, out}, {policy.Rules{Store: "eu"}, euOut}} {
		s := serve(t, c.rules, w, answer)
		_, err := s.deliver(of("ada", "1"))
		require.NoError(t, err)
		require.Len(t, c.into.Messages(), 1)
	}
	require.Len(t, out.Messages(), 1, "the other outbox was used too")
}

// Messages of one key are handled one after the other; behind a parked one they wait, or go on.
func TestOrderKey(t *testing.T) {
	for onParked, want := range map[policy.OnParked][]string{
		policy.HoldKey:  {"1", "1", "3"},
		policy.Continue: {"1", "1", "2", "3"},
	} {
		t.Run(string(onParked), func(t *testing.T) {
			store := newStore(t)
			rules := policy.Rules{
				Ack: policy.AckStored, OrderKey: "metadata:account", OnParked: onParked,
				Retry: policy.Retry{Attempts: 2, Backoff: policy.Duration(time.Millisecond), MaxBackoff: policy.Duration(time.Millisecond)},
			}
			w := policy.Wiring{Store: store}
			w.Durable.Poll = 10 * time.Millisecond
			s := serve(t, rules, w, func(msg *message.Message) ([]*message.Message, error) {
				if msg.UUID == "1" {
					return nil, errors.New("never")
				}
				return takesTx(msg)
			})
			for _, msg := range []*message.Message{of("ada", "1"), of("ada", "2")} {
				s.feed.Send(t, msg)
				require.True(t, rig.Answer(t, msg))
			}
			require.Eventually(t, func() bool {
				found, err := admin.New(store).Find(context.WithoutCancel(t.Context()), admin.Filter{Status: admin.Parked}, 0, 10)
				return err == nil && len(found) == 1
			}, rig.Patience, 10*time.Millisecond)
			if onParked == policy.Continue {
				require.Eventually(t, func() bool { return len(s.runs()) == 3 }, rig.Patience, 10*time.Millisecond)
			}
			last := of("bob", "3")
			s.feed.Send(t, last)
			require.True(t, rig.Answer(t, last))
			require.Eventually(t, func() bool { return len(s.runs()) >= len(want) }, rig.Patience, 10*time.Millisecond)
			require.Equal(t, want, s.runs())
		})
	}
}

func TestGateThatFails(t *testing.T) {
	rules := policy.Rules{Strategy: policy.Gate, Version: policy.Version{From: "cloudevent", OnGap: policy.GapFail, First: policy.FirstIsZero}}
	s := serve(t, rules, policy.Wiring{Store: newStore(t)}, takesTx)
	version := func(n string) *message.Message {
		msg := message.NewMessage(n, nil)
		msg.Metadata.Set("ce_partitionkey", "ada")
		msg.Metadata.Set("ce_sequence", n)
		return msg
	}
	_, err := s.deliver(version("0"))
	require.NoError(t, err)
	_, err = s.deliver(version("2"))
	gap := &inbox.GapError{}
	require.ErrorAs(t, err, &gap)
	_, err = s.deliver(message.NewMessage("without", nil))
	require.NoError(t, err, "it is kept for an operator")
	require.Equal(t, []string{"0"}, s.runs())
}

func TestSequenceOptional(t *testing.T) {
	rules := policy.Rules{Strategy: policy.Latest, Version: policy.Version{Sequence: policy.SequenceOptional}}
	s := serve(t, rules, policy.Wiring{Store: newStore(t)}, takesTx)
	_, err := s.deliver(message.NewMessage("without", nil))
	require.NoError(t, err)
	require.Equal(t, []string{"without"}, s.runs())
}

// What a policy has no words for comes from the wiring, what it has words for does not.
func TestTheWiringFillsInTheRest(t *testing.T) {
	began := 0
	w := policy.Wiring{Store: newStore(t), Outbox: &rig.Publisher{}}
	w.Inbox.OnBegin = func(context.Context, *sqlx.Tx, *message.Message) error { began++; return nil }
	w.Inbox.Consumer, w.Inbox.Epoch, w.Inbox.Key = "other", 7, inbox.ByMetadata("account")
	s := serve(t, policy.Rules{}, w, takesTx)
	for _, uuid := range []string{"1", "2", "2"} {
		_, err := s.deliver(of("ada", uuid))
		require.NoError(t, err)
	}
	require.Equal(t, 2, began)
	require.Equal(t, []string{"1", "2"}, s.runs())
}

func TestCollisions(t *testing.T) {
	for collision, c := range map[policy.Collision]struct {
		err    error
		parked int
	}{policy.CollisionPark: {nil, 1}, policy.CollisionDrop: {nil, 0}, policy.CollisionFail: {inbox.ErrCollision, 0}} {
		store := newStore(t)
		s := serve(t, policy.Rules{Collision: collision}, policy.Wiring{Store: store}, takesTx)
		_, err := s.deliver(message.NewMessage("1", []byte("a")))
		require.NoError(t, err)
		_, err = s.deliver(message.NewMessage("1", []byte("b")))
		require.ErrorIs(t, err, c.err)
		found, err := admin.New(store).Find(t.Context(), admin.Filter{Status: admin.Parked}, 0, 10)
		require.NoError(t, err)
		require.Len(t, found, c.parked, collision)
	}
}
