package bench_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkJournal is P1's inbox with a journal, against itself without.
func BenchmarkJournal(b *testing.B) {
	db := database(b)
	plain, kept := withInbox(b, db), withJournal(b, db)
	plain.handle(b, 200)
	rates, ratios := series{}, []float64{}
	for range pick(9, 1) {
		settleDown(b, db)
		before := plain.flood(b, phase())
		rate := kept.flood(b, phase())
		after := plain.flood(b, phase())
		rates.add("plain", (before+after)/2)
		rates.add("journal", rate)
		ratios = append(ratios, rate/((before+after)/2))
		run(b, db, `TRUNCATE millrace_claims, millrace_journal`)
	}
	atLeast("journal", 0.75).judge(b, ratios, "with %.0f/s, without %.0f/s", median(rates["journal"]), median(rates["plain"]))
}

func withJournal(b *testing.B, db *testdb.DB) *service {
	b.Helper()
	store := newStore(b, db)
	s := serve(b, transfer, func(router *message.Router) {
		router.AddMiddleware(millrace.Inbox{Store: store, Options: inbox.Options{Journal: true}}.Middleware)
		router.AddPlugin(store.Plugin())
	})
	s.handle(b, 200)
	return s
}
