package bench_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/recent"
	"github.com/millrace-go/millrace/internal/stack"
	inTurn "github.com/millrace-go/millrace/internal/turns"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
)

// BenchmarkCPU is P13: the processor time that Inbox adds to a hand-written handler with
// the same statements, in units of what router and gochannel take for a handler that does
// nothing. The time is the process's own, user and system; the server's is not in it.
// The second line takes the database away, and with it most of the noise. The third is the least
// program with the same duties in Inbox's place: what no inbox can go below.
func BenchmarkCPU(b *testing.B) {
	db := database(b)
	nothing := serve(b, func(*message.Message) error { return nil }, func(*message.Router) {})
	overhead(b, "P13", nothing, withoutInbox(b, db.DB.DB), withInbox(b, db), pick(800, 20))

	void := openSilent()
	b.Cleanup(func() { require.NoError(b, void.Close()) })
	store := rig.NewStore(b, void, inbox.Config{WithoutPlugin: true})
	manual := withoutInbox(b, void.DB)
	overhead(b, "P13/no-database", nothing, manual, silentInbox(b, store), pick(5_000, 50))
	least := newLeastInbox(void, claim, transfer)
	overhead(b, "P13/least", nothing, manual, serve(b, least.handle, func(*message.Router) {}), pick(5_000, 50))
}

// leastInbox does what an inbox must do for a message that comes for the first time and succeeds, and nothing else.
type leastInbox struct {
	db      *sqlx.DB
	claim   string
	handler message.NoPublishHandlerFunc
	turns   inTurn.Turns
	settled *recent.Set
}

func newLeastInbox(db *sqlx.DB, claim string, handler message.NoPublishHandlerFunc) *leastInbox {
	return &leastInbox{db: db, claim: claim, handler: handler, settled: recent.NewSet(100_000, time.Hour)}
}

func (l *leastInbox) handle(msg *message.Message) error {
	stack.Grow()
	id, sum := keycode.Encode(msg.UUID), sha256.Sum256(msg.Payload)
	key, hash := "billing:"+string(id), int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // the bits matter
	if _, known := l.settled.Get(key); known {
		return nil
	}
	// A copy in this process waits for this one.
	turn, _, err := l.turns.Take(msg.Context(), key, hash)
	if err != nil {
		return err
	}
	if err := l.inTx(msg, id, hash); err != nil {
		turn.Fail()
		return err
	}
	l.settled.Add(key, hash)
	turn.Settle(hash)
	return nil
}

// inTx has two contexts and a timer: a router that closes must not undo a finished run, and the handler must see that
// the router closes. It has a connection of its own, on which nothing follows a COMMIT that failed.
func (l *leastInbox) inTx(msg *message.Message, id []byte, hash int64) error {
	ctx := msg.Context()
	defer msg.SetContext(ctx)
	whole, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	handler, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(25*time.Second, func() { cancel(); end() })
	defer timer.Stop()
	conn, err := l.db.Connx(whole)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTxx(whole, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	result, err := tx.ExecContext(whole, l.claim, int32(7), id, hash, rand.Int64()) //nolint:gosec // no secret
	if err != nil {
		return err
	}
	if won, err := result.RowsAffected(); err != nil || won == 0 {
		return err
	}
	// What the handler changes of the message must not reach a redelivery.
	came := original.Arrive(msg)
	came.HandOver(msg)
	defer came.Restore(msg)
	msg.SetContext(ambient.With(handler, ambient.New(tx, l.db)))
	if err := l.handler(msg); err != nil {
		return err
	}
	return tx.Commit()
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
