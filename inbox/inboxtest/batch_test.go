package inboxtest_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// batched is a service that books payments in batches.
func batched(h func(p *inboxtest.Process) func(ctx context.Context, msgs []*message.Message) error) inboxtest.Scenario {
	s := accounts(func(p *inboxtest.Process, store *inbox.Store) error {
		batch := millrace.Batch{Inbox: millrace.Inbox{Store: store, Timeout: 300 * time.Millisecond}, Max: 2, Linger: 50 * time.Millisecond}
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, batch.ConsumerHandler(h(p)))
		return nil
	})
	s.InFlight = len(s.Inputs)
	return s
}

// addAll adds all payments.
func addAll(msgs []*message.Message, do func(msg *message.Message) error) error {
	for _, msg := range msgs {
		if err := do(msg); err != nil {
			return err
		}
	}
	return nil
}

func TestARightBatchPasses(t *testing.T) {
	t.Parallel()
	together := make(chan bool, 10_000)
	s := batched(func(p *inboxtest.Process) func(context.Context, []*message.Message) error {
		return func(ctx context.Context, msgs []*message.Message) error {
			p.Callback(ctx, "batch")
			if len(msgs) > 1 {
				together <- true
			}
			return addAll(msgs, addInTx)
		}
	})
	if testdb.Long() {
		inboxtest.Exhaust(t, s)
	} else {
		inboxtest.Random(t, s, 40, rand.Uint64())
	}
	assert.NotEmpty(t, together, "nothing was a batch")
	assert.Condition(t, func() bool {
		return slices.ContainsFunc(inboxtest.Faults(t, s), func(fault string) bool {
			return strings.HasPrefix(fault, "panic before m") && strings.HasSuffix(fault, " CALLBACK batch")
		})
	}, "the function does not panic")
}

func TestWrongBatchesAreFound(t *testing.T) {
	for name, wrong := range map[string]struct {
		h    func(p *inboxtest.Process) func(ctx context.Context, msgs []*message.Message) error
		want []string
		by   func(testing.TB, inboxtest.Scenario) // finds it sooner than Exhaust
	}{
		"an effect outside of the transaction": {
			func(p *inboxtest.Process) func(context.Context, []*message.Message) error {
				return func(ctx context.Context, msgs []*message.Message) error {
					if _, err := inbox.Tx(ctx); err != nil {
						return err
					}
					return addAll(msgs, func(msg *message.Message) error { return add(msg, p.DB) }) //nolint:contextcheck // the message has it
				}
			},
			[]string{"written outside of the inbox's transaction", "wrong_test.go:"}, inboxtest.CrashAfterCommit,
		},
		"published before the commit": {
			func(p *inboxtest.Process) func(context.Context, []*message.Message) error {
				return func(_ context.Context, msgs []*message.Message) error {
					if err := addAll(msgs, addInTx); err != nil {
						return err
					}
					return p.Publisher.Publish("receipts", message.NewMessage(watermill.NewUUID(), msgs[0].Payload))
				}
			},
			[]string{"published to receipts before the commit", "batch_test.go:"}, inboxtest.CrashAfterCommit,
		},
		"what a failed try has gathered": {
			func(*inboxtest.Process) func(context.Context, []*message.Message) error {
				var mu sync.Mutex           // messages that are alone come at once
				var todo []*message.Message // it should be of one call
				return func(ctx context.Context, msgs []*message.Message) error {
					mu.Lock()
					todo = append(todo, msgs...)
					all := slices.Clone(todo)
					mu.Unlock()
					for _, msg := range all {
						tx, err := inbox.Tx(ctx)
						if err != nil {
							return err
						}
						if _, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + `+string(msg.Payload)); err != nil {
							return err
						}
					}
					mu.Lock()
					defer mu.Unlock()
					todo = nil
					return nil
				}
			},
			[]string{"the ledger is"}, inboxtest.InterruptedStatement,
		},
		"acked in the batch": {
			func(*inboxtest.Process) func(context.Context, []*message.Message) error {
				return func(_ context.Context, msgs []*message.Message) error {
					for _, msg := range msgs {
						msg.Ack()
					}
					return addAll(msgs, addInTx)
				}
			},
			[]string{"the ledger is"}, inboxtest.CrashBeforeCommit,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heard := &heard{TB: t}
			s := batched(wrong.h)
			if strings.HasPrefix(name, "an effect outside") {
				s.Patience = 5 * time.Second // on SQLite the pool waits for the transaction
			}
			found := func() bool {
				return !slices.ContainsFunc(wrong.want, func(want string) bool { return !strings.Contains(heard.String(), want) })
			}
			play := wrong.by
			if testdb.Long() {
				play = inboxtest.Exhaust
			}
			for tries := 0; tries < 4 && !found(); tries++ { // which message comes first is chance: a fault may find no call to happen at
				play(heard, s)
			}
			for _, want := range wrong.want {
				assert.Contains(t, heard.String(), want)
			}
		})
	}
}
