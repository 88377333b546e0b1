package bench_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkPolicy is P1's inbox, wired by a policy, against itself wired by hand.
func BenchmarkPolicy(b *testing.B) {
	db := database(b)
	byHand, byPolicy := withInbox(b, db), withPolicy(b, db)
	byHand.handle(b, 200)
	byPolicy.handle(b, 200)
	rates, ratios := series{}, []float64{}
	for range pick(9, 1) {
		settleDown(b, db)
		before := byHand.flood(b, phase())
		rate := byPolicy.flood(b, phase())
		after := byHand.flood(b, phase())
		rates.add("by hand", (before+after)/2)
		rates.add("by policy", rate)
		ratios = append(ratios, rate/((before+after)/2))
		run(b, db, `TRUNCATE millrace_claims`)
	}
	atLeast("policy", 0.98).judge(b, ratios, "by policy %.0f/s, by hand %.0f/s",
		median(rates["by policy"]), median(rates["by hand"]))
}

func withPolicy(b *testing.B, db *testdb.DB) *service {
	b.Helper()
	store := newStore(b, db)
	return serve(b, transfer, func(router *message.Router) {
		rules := policy.Policy{Strict: true, Consumers: map[string]policy.Rules{"billing": {Strategy: policy.Inbox}}}
		_, err := rules.Wire(router, policy.Wiring{Store: store})
		require.NoError(b, err)
	})
}

// BenchmarkDispatch is what a policy adds to each message: it finds the handler's middlewares.
func BenchmarkDispatch(b *testing.B) {
	for name, wire := range map[string]func(*message.Router) error{
		"with a policy": func(router *message.Router) error {
			rules := policy.Policy{Strict: true, Consumers: map[string]policy.Rules{"billing": {Strategy: policy.None}}}
			_, err := rules.Wire(router, policy.Wiring{})
			return err
		},
		"without": func(*message.Router) error { return nil },
	} {
		b.Run(name, func(b *testing.B) {
			type call struct {
				h   message.HandlerFunc
				msg *message.Message
			}
			calls := make(chan call, 1)
			s := serve(b, func(*message.Message) error { return nil }, func(router *message.Router) {
				router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						calls <- call{next, msg} // as the router calls it
						return next(msg)
					}
				})
				require.NoError(b, wire(router))
			})
			s.handle(b, 1)
			c := <-calls
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.h(c.msg)
			}
		})
	}
}
