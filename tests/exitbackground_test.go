package tests_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestExitConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, exitBodies)
}

var exitBodies = []testdb.Body{
	{
		Name: "a function of the service that ends its goroutine in the background", Why: "the background work goes on",
		Run: exitsBackground,
	},
	{
		Name: "a store of leases that ends its goroutine after the ack", Why: "the key is held until its lease ends, and no longer",
		Run: exitsAfterAck,
	},
}

func exitsBackground(t *testing.T, db *testdb.DB) {
	b := newBed(t, db)
	var left atomic.Int64
	leave := inbox.On(func(context.Context, inbox.Event) { left.Add(1); runtime.Goexit() }, inbox.KindPurged, inbox.KindClaims)
	pool := db.Open(t)
	pool.SetMaxOpenConns(3)
	store := b.newStore(pool.DB, inbox.Config{PurgeInterval: 20 * time.Millisecond, Observers: []inbox.Observer{leave}})
	h := millrace.Inbox{Store: store, Consumer: "c", Options: inbox.Options{Retention: inbox.MinRetention}}.Middleware(effect)
	must(t, h, newMessage("x"))
	b.exec(`UPDATE millrace_claims SET processed_at = 1`)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := errBoom // where the goroutine ends
		defer func() { ended <- err }()
		err = store.Run(ctx)
	}()
	rig.Eventually(t, "the claim is purged", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_claims`) == 0 })
	rig.Eventually(t, "it is told of again and again", func() bool { return left.Load() > 5 })
	stop()
	require.NoError(t, <-ended)
	assert.Equal(t, left.Load(), store.Panics())
	assert.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond)
}

// departing is a store of leases whose Confirm ends the goroutine.
type departing struct{ lease.Store }

func (departing) Confirm(context.Context, lease.Key, int64, time.Duration) error {
	runtime.Goexit()
	return nil
}

func exitsAfterAck(t *testing.T, db *testdb.DB) {
	b := newBed(t, db)
	claims := inbox.NewLeases(departing{b.store.Leases().Store()}, inbox.LeasesConfig{Logger: b.events})
	h := millrace.Deduplicate{Claims: claims, Consumer: "c", Lease: 500 * time.Millisecond, Wait: 20 * time.Second}.Middleware(
		func(*message.Message) ([]*message.Message, error) { return []*message.Message{newMessage("y")}, nil })
	id := watermill.NewUUID()
	for range 2 {
		msg := message.NewMessage(id, nil)
		b.within("a copy", func() {
			_, err := h(msg)
			assert.NoError(t, err)
		})
		msg.Ack()
	}
	rig.Eventually(t, "it is logged", func() bool {
		return b.logged("inbox: a function panicked beside or after a handler; it goes on: runtime.Goexit") == 2
	})
}
