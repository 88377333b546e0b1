package bench_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// BenchmarkDuplicate is P3: how much faster a duplicate is than its first delivery, by what
// is known of it. No router: it would be most of the cost of a duplicate that is known.
func BenchmarkDuplicate(b *testing.B) {
	db := database(b)
	one := func(store *inbox.Store) message.HandlerFunc {
		return millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(
			func(msg *message.Message) ([]*message.Message, error) { return nil, transfer(msg) })
	}
	rates := series{}
	for range turns() {
		run(b, db, `TRUNCATE millrace_claims`)
		settleDown(b, db)
		mine := one(newStore(b, db))
		ids := fresh(pick(10_000, 200))
		rates.add("first", deliver(b, mine, ids, nil, 1))
		// Each id once per Store, so that no Store knows it from before.
		rates.add("unknown", deliver(b, one(newStore(b, db)), ids, nil, 1))
		marked := message.Metadata{"_watermill_amqp_redelivered": "true"}
		rates.add("marked", deliver(b, one(newStore(b, db)), ids, marked, 1))
		rates.add("settled", deliver(b, mine, ids, nil, pick(100, 2)))
	}
	for _, g := range []struct {
		goal
		way string
	}{
		{atLeast("P3/unknown", 1.8), "unknown"},
		{atLeast("P3/marked-redelivered", 4), "marked"},
		{atLeast("P3/settled-here", 100), "settled"},
	} {
		g.judge(b, rates.over(g.way, "first"), "%.0f/s, first deliveries %.0f/s",
			median(rates[g.way]), median(rates["first"]))
	}
}

func fresh(n int) []string {
	ids := make([]string, 0, n)
	for range n {
		ids = append(ids, watermill.NewUUID())
	}
	return ids
}

// deliver hands every id to h as often as times and returns the deliveries per second.
func deliver(b *testing.B, h message.HandlerFunc, ids []string, metadata message.Metadata, times int) float64 {
	b.Helper()
	_, _ = h(message.NewMessage(watermill.NewUUID(), payload)) // registers the consumer
	messages := make([]*message.Message, 0, len(ids))
	for _, id := range ids {
		msg := message.NewMessage(id, payload)
		for k, v := range metadata {
			msg.Metadata.Set(k, v)
		}
		messages = append(messages, msg)
	}
	began := time.Now()
	for range times {
		var next atomic.Int64
		parallel(b, func() (done bool, err error) {
			i := next.Add(1) - 1
			if i >= int64(len(messages)) {
				return true, nil
			}
			_, err = h(messages[i])
			return false, err
		})
	}
	return float64(times*len(ids)) / time.Since(began).Seconds()
}
