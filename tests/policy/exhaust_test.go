package policy_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestEveryFault plays the six consumers with one fault at each of their points, which takes
// minutes; usually some faults that chance chooses.
func TestEveryFault(t *testing.T) {
	if testdb.Long() {
		inboxtest.Exhaust(t, scenario())
		return
	}
	inboxtest.Random(t, scenario(), 2, rand.Uint64())
}

// TestReplayMode replays what was handled, remembered and forgotten. Whoever builds something
// anew from it does so, and nobody is mailed or commanded twice.
func TestReplayMode(t *testing.T) {
	s := scenario()
	s.Rebuild = func(ctx context.Context, db *sqlx.DB) error {
		_, err := db.ExecContext(ctx, `DELETE FROM effects WHERE handler <> 'notification-sender'`)
		return err
	}
	inboxtest.ReplayMode(t, s)
}

// scenario is the six consumers, given two versions of a product.
func scenario() inboxtest.Scenario {
	const want = "x y"
	return inboxtest.Scenario{
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{})
			if err != nil {
				return err
			}
			if err := store.Migrate(ctx); err != nil {
				return err
			}
			return createEffects(ctx, db, "sqlite")
		},
		Service: serveSix,
		Inputs:  inboxtest.To("products", change("x", "chair", 1, "made"), change("y", "chair", 2, "sold")),
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			ledger := map[string]string{}
			for handler := range sixConsumers().Consumers {
				effects, err := effectsOf(ctx, db, handler)
				if err != nil {
					return nil, err
				}
				switch handler {
				case "audit-copy": // in order
				case "search-indexer": // never back, and past what was overtaken
					effects = strings.TrimPrefix(effects, "x ")
				default:
					effects = sorted(effects)
				}
				ledger[handler] = effects
			}
			return ledger, nil
		},
		Want: map[string]string{
			"search-indexer": "y", "notification-sender": want, "analytics": want, "audit-copy": want, "workflow": want,
			"cache-warmer": "", // it has no effects that are kept
		},
		Patience: time.Minute, // with so many plays at once, a busy machine may need it
	}
}

func sorted(effects string) string {
	all := strings.Fields(effects)
	slices.Sort(all)
	return strings.Join(all, " ")
}

// serveSix is the service's main.
func serveSix(p *inboxtest.Process) error {
	store, err := inbox.NewStore(p.DB, inbox.Config{Logger: p.Logger})
	if err != nil {
		return err
	}
	p.OnClose(store.Close)
	out, err := outbox.NewPublisher(p.DB, outbox.Config{})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(p.DB, p.Publisher, outbox.RelayConfig{
		Lease: 2 * time.Second, Poll: 50 * time.Millisecond, Drain: time.Second,
		MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, MaxAttempts: outbox.Unlimited,
	})
	if err != nil {
		return err
	}
	p.Go(relay.Run)

	rules, err := policy.ReadFile(six)
	if err != nil {
		return err
	}
	rules.Defaults.Timeout = policy.Duration(800 * time.Millisecond) // how long an answer is waited for that comes too late
	mails := rules.Consumers["notification-sender"]
	mails.Retry.Attempts = 100
	rules.Consumers["notification-sender"] = mails
	wiring := policy.Wiring{Store: store, Outbox: out}
	wiring.Durable.Poll, wiring.Durable.Lease = 50*time.Millisecond, time.Second
	wired, err := rules.Wire(p.Router, wiring)
	if err != nil {
		return err
	}
	return addSix(p.Router, func(handler string) (message.Subscriber, error) {
		return wired.Subscriber(handler, p.Group(handler))
	}, &outside{}, p.External)
}
