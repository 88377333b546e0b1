package policy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

const six = "testdata/six.yaml"

// sixConsumers is what the file says.
func sixConsumers() policy.Policy {
	const (
		ms   = policy.Duration(time.Millisecond)
		hour = policy.Duration(time.Hour)
		day  = 24 * hour
	)
	none := 0
	return policy.Policy{
		Strict:   true,
		Defaults: policy.Rules{Retention: 14 * day, Window: 7 * day, Timeout: 20_000 * ms},
		Consumers: map[string]policy.Rules{
			"search-indexer": {
				Strategy:    policy.Latest,
				Version:     policy.Version{From: "json:product,version"},
				SideEffects: policy.DeterministicID,
			},
			"notification-sender": {
				Strategy: policy.Durable, Retry: policy.Retry{Attempts: 8, Backoff: 10 * ms, MaxBackoff: 50 * ms},
				SideEffects: policy.ProviderKey, Replay: policy.ReplayRefuse,
				Alerts: policy.Alerts{PendingAge: hour / 6, Parked: &none},
			},
			"analytics": {
				Strategy: policy.Inbox, Key: policy.Key{From: "json:product,event"}, Collision: policy.CollisionDrop,
			},
			"audit-copy": {
				Strategy: policy.Gate, Retention: policy.Forever,
				Version: policy.Version{From: "json:product,version", MaxHeld: 100, HeldFor: 6 * hour},
				Retry:   policy.Retry{Backoff: 10 * ms, MaxBackoff: 50 * ms},
				Alerts:  policy.Alerts{HeldAge: hour, Parked: &none},
			},
			"workflow":     {Strategy: policy.Intent, Replay: policy.ReplaySuppress},
			"cache-warmer": {Strategy: policy.None},
		},
	}
}

func TestTheFileAndTheValueAreOnePolicy(t *testing.T) {
	file, err := policy.ReadFile(six)
	require.NoError(t, err)
	value := sixConsumers()
	require.NoError(t, value.Check())
	require.Equal(t, value.Strict, file.Strict)
	require.Equal(t, value.Defaults, file.Defaults)
	require.Equal(t, value.Consumers, file.Consumers)
	for handler := range value.Consumers {
		require.Equal(t, value.Explain(handler), file.Explain(handler))
	}
}

// change is the message that brings a product to a version.
func change(uuid, product string, version int, event string) *message.Message {
	return message.NewMessage(uuid, fmt.Appendf(nil, `{"product":%q,"version":%d,"event":%q}`, product, version, event))
}

// outside is what handlers do where no transaction reaches.
type outside struct {
	mu     sync.Mutex
	mails  []string // the keys that the provider was given, each call
	warmed []string
	fail   map[string]int // handlers, and how often they still fail
}

var errOutside = errors.New("the provider is down")

func (o *outside) do(what *[]string, uuid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*what = append(*what, uuid)
}

func (o *outside) failing(handler string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail[handler] > 0 {
		o.fail[handler]--
		return errOutside
	}
	return nil
}

// all returns copies of what was done.
func (o *outside) all() (mails, warmed []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string{}, o.mails...), append([]string{}, o.warmed...)
}

// record is what each handler with a transaction writes.
func record(ctx context.Context, handler, what string) error {
	return rig.Exec(ctx, `INSERT INTO effects (handler, what) VALUES (?, ?)`, handler, what)
}

// call is made to something outside; a play of package inboxtest disturbs it.
type call func(ctx context.Context, name string, act func() error) error

func undisturbed(_ context.Context, _ string, act func() error) error { return act() }

// addSix adds the six handlers, each with the subscriber that subscribe returns for it.
func addSix(
	router *message.Router, subscribe func(handler string) (message.Subscriber, error), out *outside, mail call,
) error {
	transactional := func(handler string) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if err := out.failing(handler); err != nil {
				return nil, err
			}
			return nil, record(msg.Context(), handler, msg.UUID)
		}
	}
	handlers := map[string]message.HandlerFunc{
		"search-indexer": transactional("search-indexer"),
		"analytics":      transactional("analytics"),
		"audit-copy":     transactional("audit-copy"),
		"notification-sender": func(msg *message.Message) ([]*message.Message, error) {
			err := mail(msg.Context(), "provider", func() error {
				if err := out.failing("notification-sender"); err != nil {
					return err
				}
				out.do(&out.mails, msg.UUID)
				return nil
			})
			if err != nil {
				return nil, err
			}
			return nil, record(msg.Context(), "notification-sender", msg.UUID)
		},
		"workflow": func(msg *message.Message) ([]*message.Message, error) {
			command := message.NewMessage("do-"+msg.UUID, msg.Payload)
			return []*message.Message{command}, record(msg.Context(), "workflow", msg.UUID)
		},
		"cache-warmer": func(msg *message.Message) ([]*message.Message, error) {
			out.do(&out.warmed, msg.UUID)
			return nil, nil
		},
	}
	for handler, h := range handlers {
		sub, err := subscribe(handler)
		if err != nil {
			return err
		}
		router.AddHandler(handler, "products", sub, "commands", nowhere{}, h)
	}
	return nil
}

// nowhere is the publisher of handlers that go through the outbox.
type nowhere struct{}

func (nowhere) Publish(topic string, msgs ...*message.Message) error {
	return fmt.Errorf("%d messages for %s went past the outbox", len(msgs), topic)
}
func (nowhere) Close() error { return nil }

// createEffects creates the table of what was done in transactions.
func createEffects(ctx context.Context, db *sqlx.DB, dialect string) error {
	id := map[string]string{
		"postgres": "BIGSERIAL PRIMARY KEY", "mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[dialect]
	_, err := db.ExecContext(ctx, `CREATE TABLE effects (id `+id+`, handler VARCHAR(50) NOT NULL, what VARCHAR(60) NOT NULL)`)
	return err
}

// effectsOf returns what a handler has committed, in order.
func effectsOf(ctx context.Context, db *sqlx.DB, handler string) (string, error) {
	var all []string
	err := db.SelectContext(ctx, &all, db.Rebind(`SELECT what FROM effects WHERE handler = ? ORDER BY id`), handler)
	return strings.Join(all, " "), err
}
