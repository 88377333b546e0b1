package bench_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// BenchmarkBatchRabbitMQ is P17: a service empties a quorum queue, with a batch or a message in each transaction.
func BenchmarkBatchRabbitMQ(b *testing.B) {
	r, db := newRabbit(b, "quorum"), database(b)
	const many = 200 // twice Max, as docs/batches.md advises
	rates := series{}
	for range pick(7, 1) {
		for _, way := range []struct {
			name    string
			hands   int
			n       int
			batches bool
		}{
			{"batch", many, pick(20_000, 300), true},
			{"inbox", many, pick(20_000, 300), false},
			{"inbox, one in flight", 1, pick(3_000, 50), false},
		} {
			run(b, db, `TRUNCATE millrace_claims`)
			r.purge(b)
			r.bare(b, way.n)
			settleDown(b, db)
			sub, err := rabbitmq.NewSubscriber(r.config(), rabbitmq.SubscriberConfig{InFlight: way.hands})
			require.NoError(b, err)
			once := millrace.Inbox{Store: newStore(b, db)}
			if way.batches {
				batch := millrace.Batch{Inbox: once}
				rates.add(way.name, emptied(b, db, way.n, sub, r.queue, batch.ConsumerHandler(inOneStatement)))
				continue
			}
			rates.add(way.name, emptied(b, db, way.n, sub, r.queue, transfer, once.Middleware))
		}
	}
	for name, other := range map[string]string{"P17": "inbox", "P17/one in flight": "inbox, one in flight"} {
		atLeast(name, 3).judge(b, rates.over("batch", other), "%.0f/s, one message a transaction %.0f/s",
			median(rates["batch"]), median(rates[other]))
	}
}

// BenchmarkStoredBatches is D4: stored messages in batches, against a transaction for each.
func BenchmarkStoredBatches(b *testing.B) {
	db := database(b)
	n := pick(5_000, 300)
	rates := series{}
	for range pick(7, 1) {
		for _, way := range []string{"batches", "inbox"} {
			store := newStore(b, db)
			storeMessages(b, db, store, n)
			durable := pubsub.Durable{Store: store, Consumer: "billing", Mode: pubsub.StoreFirst, Concurrency: inFlight}
			once := millrace.Inbox{Store: store}
			handler, around := message.NoPublishHandlerFunc(transfer), []message.HandlerMiddleware{once.Middleware}
			if way == "batches" {
				durable.Concurrency = 200 // twice Max
				handler, around = millrace.Batch{Inbox: once}.ConsumerHandler(inOneStatement), nil
			}
			source, err := durable.Decorate(nothing{})
			require.NoError(b, err)
			rates.add(way, emptied(b, db, n, source, topic, handler, around...))
		}
	}
	atLeast("D4", 1).judge(b, rates.over("batches", "inbox"),
		"%.0f/s, a transaction for each %.0f/s", median(rates["batches"]), median(rates["inbox"]))
}

func inOneStatement(ctx context.Context, msgs []*message.Message) error {
	return together(ctx, len(msgs))
}

// BenchmarkPoison is P18: of a hundred messages that arrive at once, one fails in every try. It tells after what time
// the others are answered.
func BenchmarkPoison(b *testing.B) {
	db := database(b)
	poison := errors.New("poison")
	p50s, p99s := series{}, series{}
	ways := map[string]func(bad *message.Message) error{
		"no poison": func(*message.Message) error { return nil },
		"named":     func(bad *message.Message) error { return millrace.Failed(bad, poison) },
		"not named": func(*message.Message) error { return poison },
	}
	for range pick(7, 1) {
		for way, fail := range ways {
			run(b, db, `TRUNCATE millrace_claims`)
			settleDown(b, db)
			took := poisoned(b, newStore(b, db), fail, pick(100, 2))
			p50s.add(way, milliseconds(took, 0.5))
			p99s.add(way, milliseconds(took, 0.99))
		}
	}
	for _, way := range []string{"named", "not named"} {
		tell(fmt.Sprintf("P18/%s ratio=%.2f no goal (one message of 100 fails; the other 99: p50 %.1f ms, p99 %.1f ms; if none fails: p50 %.1f ms, p99 %.1f ms; turns %s)",
			way, median(p99s.over(way, "no poison")), median(p50s[way]), median(p99s[way]), median(p50s["no poison"]), median(p99s["no poison"]),
			list(p99s.over(way, "no poison"))))
	}
}

// poisoned returns how long the good messages took in so many batches of a hundred.
func poisoned(b *testing.B, store *inbox.Store, fail func(bad *message.Message) error, batches int) []time.Duration {
	b.Helper()
	const size, at = 100, 42
	bad := func(msg *message.Message) bool { return string(msg.Payload) == "poison" }
	once := millrace.Inbox{Store: store, Consumer: "billing"}
	h := millrace.Batch{Inbox: once, Max: size, Linger: time.Minute}.ConsumerHandler(
		func(ctx context.Context, msgs []*message.Message) error {
			err := together(ctx, len(msgs))
			if i := slices.IndexFunc(msgs, bad); i >= 0 {
				err = errors.Join(err, fail(msgs[i]))
			}
			return err
		})
	took := make([]time.Duration, 0, batches*size)
	for range batches {
		var all sync.WaitGroup
		began, each := time.Now(), make([]time.Duration, size)
		for i := range size {
			msg := message.NewMessage(watermill.NewUUID(), payload)
			if i == at {
				msg.Payload = []byte("poison")
			}
			all.Go(func() {
				if err := h(msg); err != nil && !bad(msg) {
					b.Error(err)
				}
				each[i] = time.Since(began)
			})
		}
		all.Wait()
		took = append(took, slices.Delete(each, at, at+1)...)
	}
	return took
}
