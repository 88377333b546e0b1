package bench_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// aggregates is over how many the versions are spread.
const aggregates = 100

// gateStore is a Store whose held messages count as delivered by somebody.
func gateStore(b *testing.B, db *testdb.DB) *inbox.Store {
	b.Helper()
	store := newStore(b, db)
	_, err := store.Queue(inbox.QueueConfig{Consumer: "billing"})
	require.NoError(b, err)
	return store
}

func transferred(msg *message.Message) ([]*message.Message, error) { return nil, transfer(msg) }

// plain and gated are a handler under Inbox, without a router.
func plain(store *inbox.Store) message.HandlerFunc {
	return millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(transferred)
}

func gated(store *inbox.Store, gate millrace.VersionGate) message.HandlerFunc {
	return millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(gate.Middleware(transferred))
}

func versioned(aggregate string, version int64) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), payload)
	msg.Metadata.Set(inbox.AggregateField, aggregate)
	msg.Metadata.Set(inbox.VersionField, strconv.FormatInt(version, 10))
	return msg
}

// stream gives out the versions of all aggregates: those of one aggregate in order, and
// one at a time.
type stream struct {
	prefix string
	idle   chan int
	next   [aggregates]int64
}

func newStream(prefix string) *stream {
	s := &stream{prefix: prefix, idle: make(chan int, aggregates)}
	for i := range aggregates {
		s.idle <- i
	}
	return s
}

// deliver hands the next version of some aggregate to h.
func (s *stream) deliver(h message.HandlerFunc) error {
	a := <-s.idle
	s.next[a]++
	_, err := h(versioned(s.prefix+strconv.Itoa(a), s.next[a]))
	s.idle <- a
	return err
}

// rate is how many messages h handles per second, sixteen in flight.
func (s *stream) rate(b *testing.B, h message.HandlerFunc, d time.Duration) float64 {
	b.Helper()
	began := time.Now()
	handled := parallel(b, func() (done bool, err error) {
		if time.Since(began) >= d {
			return true, nil
		}
		return false, s.deliver(h)
	})
	return float64(handled) / time.Since(began).Seconds()
}

// BenchmarkGate is G1 and G2: what the gate costs a message that comes in order, and how
// much faster than that a stale one is.
func BenchmarkGate(b *testing.B) { nearAndFar(b, inOrder) }

func inOrder(b *testing.B, db *testdb.DB, at place) {
	store := gateStore(b, db)
	with, without := gated(store, millrace.VersionGate{}), plain(newStore(b, db))
	in, out, past := newStream("in "), newStream("out "), newStream("in ")
	type way struct {
		name string
		rate func() float64
	}
	ways := []way{
		{"gated", func() float64 { return in.rate(b, with, phase()) }},
		{"plain", func() float64 { return out.rate(b, without, phase()) }},
	}
	if at == near {
		ways = append(ways, way{"stale", func() float64 { return past.again(b, in, with, phase()) }})
	}
	in.rate(b, with, phase()/4)
	out.rate(b, without, phase()/4)
	rates := series{}
	for range at.turns() {
		for _, way := range ways {
			run(b, db, `TRUNCATE millrace_claims`, `VACUUM ANALYZE millrace_versions`)
			settleDown(b, db)
			rates.add(way.name, way.rate())
		}
	}
	atLeast(at.goal("G1"), 0.8).judge(b, rates.over("gated", "plain"),
		"%d aggregates, in order: gated %.0f/s, without the gate %.0f/s",
		aggregates, median(rates["gated"]), median(rates["plain"]))
	if at == far {
		return
	}
	atLeast("G2", 2).judge(b, rates.over("stale", "gated"), "stale %.0f/s, first deliveries %.0f/s",
		median(rates["stale"]), median(rates["gated"]))
}

// again delivers, from other messages, versions that were applied before.
func (s *stream) again(b *testing.B, applied *stream, h message.HandlerFunc, d time.Duration) float64 {
	b.Helper()
	var stale []int // aggregates that have such versions; in a short run some have none
	for a, next := range applied.next {
		if next > 1 {
			stale = append(stale, a)
		}
	}
	require.NotEmpty(b, stale)
	began := time.Now()
	handled := parallel(b, func() (done bool, err error) {
		if time.Since(began) >= d {
			return true, nil
		}
		a := stale[rand.IntN(len(stale))]
		_, err = h(versioned(s.prefix+strconv.Itoa(a), 1+rand.Int64N(applied.next[a]-1)))
		return false, err
	})
	return float64(handled) / time.Since(began).Seconds()
}

// BenchmarkStandingGap is G3: what the other aggregates notice of one with a gap that
// nothing closes, in front of which its messages come again and again.
func BenchmarkStandingGap(b *testing.B) {
	db := database(b)
	for name, onGap := range map[string]inbox.OnGap{"fail": inbox.GapFail, "hold": inbox.GapHold} {
		store := gateStore(b, db)
		h := gated(store, millrace.VersionGate{OnGap: onGap})
		others := newStream(name + " ")
		others.rate(b, h, phase()/4)
		rates := series{}
		var redelivered atomic.Int64
		for turn := range pick(7, 1) {
			ways := []string{"unblocked", "beside a gap"}
			if turn%2 == 1 {
				ways[0], ways[1] = ways[1], ways[0]
			}
			for _, way := range ways {
				run(b, db, `TRUNCATE millrace_claims`, `TRUNCATE millrace_messages`, `VACUUM ANALYZE millrace_versions`)
				settleDown(b, db)
				lift := func() {}
				if way != "unblocked" {
					lift = stand(b, h, fmt.Sprint(name, " gap ", turn), &redelivered)
				}
				rates.add(way, others.rate(b, h, phase()))
				lift()
			}
		}
		atLeast("G3/"+name, 0.95).judge(b, rates.over("beside a gap", "unblocked"),
			"beside a gap %.0f/s, unblocked %.0f/s, %d deliveries of what waits",
			median(rates["beside a gap"]), median(rates["unblocked"]), redelivered.Load())
	}
}

// stand delivers ten messages whose predecessor never comes, each until it is acked, as a
// source with several messages in flight does.
func stand(b *testing.B, h message.HandlerFunc, aggregate string, delivered *atomic.Int64) (lift func()) {
	const waiting = 10
	ctx, cancel := context.WithCancel(b.Context())
	var messages sync.WaitGroup
	for v := range int64(waiting) {
		messages.Go(func() {
			for msg := versioned(aggregate, v+2); ctx.Err() == nil; {
				delivered.Add(1)
				copied := msg.Copy()
				copied.SetContext(ctx)
				if _, err := h(copied); err == nil {
					return
				}
			}
		})
	}
	return func() {
		cancel()
		messages.Wait()
	}
}
