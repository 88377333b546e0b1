package bench_test

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
)

// BenchmarkCPU is P13: the processor time that Inbox adds to a hand-written handler with
// the same statements, in units of what router and gochannel take for a handler that does
// nothing. The time is the process's own, user and system; the server's is not in it.
// The second line takes the database away, and with it most of the noise.
func BenchmarkCPU(b *testing.B) {
	db := database(b)
	nothing := serve(b, func(*message.Message) error { return nil }, func(*message.Router) {})
	overhead(b, "P13", nothing, withoutInbox(b, db.DB.DB), withInbox(b, db), pick(800, 20))

	void := openSilent()
	b.Cleanup(func() { require.NoError(b, void.Close()) })
	store := rig.NewStore(b, void, inbox.Config{WithoutPlugin: true})
	overhead(b, "P13/no-database", nothing, withoutInbox(b, void.DB), silentInbox(b, store), pick(5_000, 50))
}

func silentInbox(b *testing.B, store *inbox.Store) *service {
	b.Helper()
	return serve(b, transfer, func(router *message.Router) {
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	})
}

// overhead takes turns of n messages each, in one order and then in the other, so that a
// drift of the machine hits both sides.
func overhead(b *testing.B, name string, nothing, byHand, withInbox *service, n int) {
	b.Helper()
	for _, s := range []*service{nothing, byHand, withInbox} {
		s.handle(b, 200)
	}
	times := series{}
	var ratios []float64
	for range turns() {
		var base, manual, inbox time.Duration
		const slices = 8
		for range slices {
			base += cpuOf(b, nothing, 8*n)
			manual += cpuOf(b, byHand, n)
			inbox += cpuOf(b, withInbox, 2*n)
			manual += cpuOf(b, byHand, n)
		}
		a := base.Seconds() * 1e6 / float64(8*n*slices)
		m := manual.Seconds() * 1e6 / float64(2*n*slices)
		c := inbox.Seconds() * 1e6 / float64(2*n*slices)
		times.add("router", a)
		times.add("by hand", m)
		times.add("inbox", c)
		ratios = append(ratios, (c-m)/a)
	}
	atMost(name, 0.5).judge(b, ratios, "µs of processor a message: router and gochannel %.1f, by hand %.1f, inbox %.1f",
		median(times["router"]), median(times["by hand"]), median(times["inbox"]))
}

// cpuOf returns the processor time of this process for n messages.
func cpuOf(b *testing.B, s *service, n int) time.Duration {
	b.Helper()
	runtime.GC()
	before := processor(b)
	s.handle(b, n)
	return processor(b) - before
}

func processor(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
