package bench_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// BenchmarkBatchGate is G1 through batches: every version of every aggregate in random order, against batches without
// a gate.
func BenchmarkBatchGate(b *testing.B) {
	db := database(b)
	for _, hands := range []int{inFlight, 4 * inFlight} {
		rates, held := series{}, 0.0
		for turn := range pick(3, 1) {
			for _, way := range []string{"random", "in order", "without the gate"} {
				run(b, db, `TRUNCATE millrace_claims`, `TRUNCATE millrace_messages`, `TRUNCATE millrace_history`, `VACUUM ANALYZE millrace_versions`)
				settleDown(b, db)
				s := &shuffled{way: way, hands: hands, batches: true, versions: pick(int64(50), 2), done: make(chan struct{})}
				rates.add(way, s.rate(b, db, fmt.Sprint("batch ", way, hands, turn, " ")))
				if way == "random" {
					held += 100 * float64(s.held.Load()) / float64(pick(3, 1)*s.messages())
				}
			}
		}
		for way, bound := range map[string]float64{"random": 0.8, "in order": 0.8} {
			atLeast(fmt.Sprintf("P16/gate/%s-%d", way, hands), bound).judge(b, rates.over(way, "without the gate"),
				"%.0f/s, in random order %.0f%% were held; without the gate %.0f/s", median(rates[way]), held, median(rates["without the gate"]))
		}
	}
}

// batch is the handler of batches, which changes the accounts of all messages by one statement.
func (s *shuffled) batch(store *inbox.Store) message.NoPublishHandlerFunc {
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store}}
	if s.way != "without the gate" {
		batch.Gate = &millrace.VersionGate{}
	}
	return batch.ConsumerHandler(func(ctx context.Context, msgs []*message.Message) error { return together(ctx, len(msgs)) })
}
