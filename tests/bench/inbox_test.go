package bench_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkInbox is P1 and P2: four statements per message, sixteen in flight.
func BenchmarkInbox(b *testing.B) { nearAndFar(b, fourStatements) }

func fourStatements(b *testing.B, db *testdb.DB, at place) {
	inbox, manual := withInbox(b, db), withoutInbox(b, db.DB.DB)
	inbox.handle(b, 200)
	manual.handle(b, 200)
	type way struct {
		name string
		rate func() float64
	}
	ways := []way{
		{"pgbench", func() float64 { return pgbench(b, db, "prepared", phase()) }},
		{"inbox", func() float64 { return inbox.flood(b, phase()) }},
		{"by hand", func() float64 { return manual.flood(b, phase()) }},
	}
	if at == near {
		ways = append(ways,
			way{"pgbench, simple", func() float64 { return pgbench(b, db, "simple", phase()) }},
			way{"by hand, no router", func() float64 { return alone(b, db, phase()) }})
	}
	rates := series{}
	for range at.turns() {
		for _, way := range ways {
			run(b, db, `TRUNCATE millrace_claims`)
			settleDown(b, db)
			rates.add(way.name, way.rate())
		}
	}
	per := func(way string) float64 { return median(rates[way]) }
	atLeast(at.goal("P1"), 0.95).judge(b, rates.over("inbox", "pgbench"),
		"inbox %.0f/s, pgbench %.0f/s", per("inbox"), per("pgbench"))
	atLeast(at.goal("P2"), 0.95).judge(b, rates.over("inbox", "by hand"),
		"inbox %.0f/s, by hand in the same router %.0f/s", per("inbox"), per("by hand"))
	if at == far {
		return
	}
	atLeast("P1/simple-protocol", 0.95).judge(b, rates.over("inbox", "pgbench, simple"),
		"pgbench with its default protocol %.0f/s", per("pgbench, simple"))
	tell(fmt.Sprintf("P1/by-hand ratio=%.2f no goal (what is left of pgbench without router and Inbox: by hand in bare loops, %.0f/s)",
		median(rates.over("by hand, no router", "pgbench")), per("by hand, no router")))
	atLeast("P2/no-router", 0.95).judge(b, rates.over("inbox", "by hand, no router"),
		"inbox %.0f/s, by hand in bare loops %.0f/s", per("inbox"), per("by hand, no router"))
}

// alone runs the hand-written handler in loops, without a router or a channel.
func alone(b *testing.B, db *testdb.DB, d time.Duration) (perSecond float64) {
	b.Helper()
	began := time.Now()
	handled := parallel(b, func() (done bool, err error) {
		if time.Since(began) >= d {
			return true, nil
		}
		msg := message.NewMessage(watermill.NewUUID(), payload)
		msg.SetContext(b.Context())
		return false, byHand(msg, db.DB.DB)
	})
	return float64(handled) / time.Since(began).Seconds()
}
