package bench_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var payload = []byte(`{"account":4711,"amount":"12.50","currency":"EUR","reference":"invoice 2024-0815"}`)

// service is a Watermill router with one handler behind a gochannel.
type service struct {
	channel  *gochannel.GoChannel
	failures *failures
	slots    chan struct{} // one for each message in flight
}

const topic = "payments"

// serve starts a router; build adds to it what is measured.
func serve(b *testing.B, handler message.NoPublishHandlerFunc, build func(*message.Router)) *service {
	b.Helper()
	return serveMany(b, inFlight, handler, build)
}

// serveMany is serve with so many messages in flight.
func serveMany(b *testing.B, hands int, handler message.NoPublishHandlerFunc, build func(*message.Router)) *service {
	b.Helper()
	s := &service{
		channel:  gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
		failures: &failures{},
		slots:    make(chan struct{}, hands),
	}
	router, err := message.NewRouter(message.RouterConfig{}, s.failures)
	require.NoError(b, err)
	router.AddMiddleware(s.counted)
	build(router)
	router.AddConsumerHandler("billing", topic, s.channel, handler)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(b.Context())) }()
	<-router.Running()
	b.Cleanup(func() {
		require.NoError(b, router.Close())
		require.NoError(b, <-ended)
	})
	return s
}

// counted gives a message's slot back when it was handled.
func (s *service) counted(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := next(msg)
		select {
		case <-s.slots:
		default: // a redelivery after a failure, which flow reports
		}
		return produced, err
	}
}

// flood publishes for d and returns the messages handled per second.
func (s *service) flood(b *testing.B, d time.Duration) (perSecond float64) {
	b.Helper()
	began := time.Now()
	n := s.flow(b, func(int) bool { return time.Since(began) < d })
	return float64(n) / time.Since(began).Seconds()
}

// handle publishes n messages and returns when they are handled.
func (s *service) handle(b *testing.B, n int) {
	b.Helper()
	s.flow(b, func(i int) bool { return i < n })
}

func (s *service) flow(b *testing.B, more func(i int) bool) (handled int) {
	b.Helper()
	for more(handled) {
		s.slots <- struct{}{}
		require.NoError(b, s.channel.Publish(topic, message.NewMessage(watermill.NewUUID(), payload)))
		handled++
	}
	for range cap(s.slots) {
		s.slots <- struct{}{}
	}
	for range cap(s.slots) {
		<-s.slots
	}
	require.NoError(b, s.failures.first())
	return handled
}

// parallel calls work from as many goroutines as there are messages in flight, until it
// says that all is done, and returns how often it did something.
func parallel(b *testing.B, work func() (done bool, err error)) int64 {
	b.Helper()
	var handled atomic.Int64
	var group sync.WaitGroup
	var failed atomic.Value
	for range inFlight {
		group.Go(func() {
			n := int64(0)
			defer func() { handled.Add(n) }()
			for {
				done, err := work()
				if err != nil {
					failed.CompareAndSwap(nil, err.Error())
				}
				if done || err != nil {
					return
				}
				n++
			}
		})
	}
	group.Wait()
	require.Nil(b, failed.Load())
	return handled.Load()
}

// failures is a logger that keeps the first error: the router only logs them.
type failures struct {
	watermill.NopLogger
	err atomic.Pointer[error]
}

func (f *failures) Error(msg string, err error, _ watermill.LogFields) {
	err = errors.Join(errors.New(msg), err)
	f.err.CompareAndSwap(nil, &err)
}

func (f *failures) With(watermill.LogFields) watermill.LoggerAdapter { return f }

func (f *failures) first() error {
	if p := f.err.Load(); p != nil {
		return *p
	}
	return nil
}

// withInbox is a service as the README has it.
func withInbox(b *testing.B, db *testdb.DB) *service {
	b.Helper()
	store := newStore(b, db)
	return serve(b, transfer, func(router *message.Router) {
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		router.AddPlugin(store.Plugin())
	})
}

func transfer(msg *message.Message) error {
	return rig.Exec(msg.Context(), `UPDATE bench_account SET balance = balance + 1 WHERE id = ?`, rand.IntN(accounts)+1)
}

// withoutInbox is what one would write by hand: the same four statements on the same pool.
func withoutInbox(b *testing.B, db *sql.DB) *service {
	b.Helper()
	return serve(b, func(msg *message.Message) error { return byHand(msg, db) }, func(*message.Router) {})
}

func byHand(msg *message.Message, db *sql.DB) error { return byStatements(msg, db, claim, update, "") }

// byStatements is byHand with the statements of a database, and a message for a relay unless store is empty.
func byStatements(msg *message.Message, db *sql.DB, claim, update, store string) error {
	ctx := msg.Context()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	key, err := storedKey(msg.UUID)
	if err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, claim, 7, key, 0, 1)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if _, err := tx.ExecContext(ctx, update, rand.IntN(accounts)+1); err != nil {
		return err
	}
	if store != "" {
		if _, err := tx.ExecContext(ctx, store, storedMessage()...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// storedMessage has the arguments that store a message for a relay.
func storedMessage() []any {
	return []any{rand.Int64(), "transferred", nil, watermill.NewUUID(), nil, []byte("{}"), body, nil} //nolint:gosec // no secret
}

func storedKey(uuid string) ([]byte, error) {
	id, err := hex.DecodeString(strings.ReplaceAll(uuid, "-", ""))
	return append([]byte{1}, id...), err
}
