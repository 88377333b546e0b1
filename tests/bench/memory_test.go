package bench_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

// BenchmarkDeduplicate is P8: Deduplicate with its claims in memory against Watermill's
// Deduplicator, both alone and with their defaults, on messages that are all different.
func BenchmarkDeduplicate(b *testing.B) {
	leases := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	var ours, theirs atomic.Int64
	count := func(n *atomic.Int64) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) {
			n.Add(1)
			return nil, nil
		}
	}
	millraces := millrace.Deduplicate{Claims: leases, Consumer: "billing"}.Middleware(count(&ours))
	watermills := (&middleware.Deduplicator{}).Middleware(count(&theirs))

	rates := series{}
	perTurn, sent := pick(200_000, 2_000), 0
	for range pick(5, 1) { // a million messages in all
		rates.add("theirs", distinct(b, watermills, sent, perTurn))
		rates.add("ours", distinct(b, millraces, sent, perTurn))
		sent += perTurn
	}
	atLeast("P8", 5).judge(b, rates.over("ours", "theirs"), "µs a message: ours %.2f, Watermill's %.2f",
		1e6/median(rates["ours"]), 1e6/median(rates["theirs"]))
	atMost("P8/lost", 0).judge(b, []float64{float64(int64(sent) - ours.Load())},
		"of %d distinct messages; Watermill's lost %d", sent, int64(sent)-theirs.Load())
}

// distinct handles n different messages and returns how many per second. Making them is
// not counted.
func distinct(b *testing.B, h message.HandlerFunc, from, n int) (perSecond float64) {
	b.Helper()
	const batch = 10_000
	var took time.Duration
	for first := from; first < from+n; first += batch {
		messages := make([]*message.Message, 0, batch)
		for i := first; i < min(first+batch, from+n); i++ {
			text := []byte(`{"account":4711,"amount":"12.50","reference":"invoice ` + strconv.Itoa(i) + `"}`)
			messages = append(messages, message.NewMessage(watermill.NewUUID(), text))
		}
		var next atomic.Int64
		began := time.Now()
		parallel(b, func() (done bool, err error) {
			i := next.Add(1) - 1
			if i >= int64(len(messages)) {
				return true, nil
			}
			_, err = h(messages[i])
			return false, err
		})
		took += time.Since(began)
	}
	return float64(n) / took.Seconds()
}
