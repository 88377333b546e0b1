package batch_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestWrongSettingsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	batch := millrace.Batch{Max: -1, MaxBytes: -1, Linger: -1, Gate: &millrace.VersionGate{Store: b.store, MaxHeld: -1}}
	batch.Inbox.Before = func(*message.Message) error { return nil }
	batch.Inbox.OnBegin = func(context.Context, *sqlx.Tx, *message.Message) error { return nil }
	err := batch.Validate()
	for _, part := range []string{"Max -1", "MaxBytes", "Linger", "Before", "OnBegin", "Gate.Store", "MaxHeld", "a Store is required"} {
		require.ErrorContains(t, err, part)
	}
	require.Equal(t, err, batch.Plugin()(nil))
	require.Equal(t, err, batch.ConsumerHandler(apply)(newMessages(1)[0]))
	_, err = millrace.Batch{Inbox: millrace.Inbox{Store: b.store, Consumer: "billing"}}.Handler(nil)(newMessages(1)[0])
	require.ErrorContains(t, err, "Outbox")
	require.NoError(t, millrace.Failed(nil, nil))
}

func TestABatchInsideInboxIsRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	h := millrace.Inbox{Store: b.store, Consumer: "billing"}.Middleware(b.batch(1, apply))
	rig.MustFail(t, h, newMessages(1)[0], "stands twice")
	assert.Zero(t, b.effects())
}

func TestMaxBytesBoundsABatch(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	var seen sizes
	h := b.batch(100, seen.of(apply), func(b *millrace.Batch) { b.MaxBytes = 3 })
	msgs := newMessages(9) // of one byte
	b.must(h, msgs)
	b.once(msgs)
	for _, n := range seen.seen() {
		assert.LessOrEqual(t, n, 3)
	}
	large := message.NewMessage("large", make([]byte, 100))
	b.must(h, []*message.Message{large})
	b.once(append(msgs, large))
}

func TestLingerEnds(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	var seen sizes
	h := b.batch(100, seen.of(apply), func(b *millrace.Batch) { b.Linger = 2 * time.Second })
	var msgs []*message.Message
	rig.Eventually(t, "three come while the first lingers", func() bool {
		three := newMessages(3)
		b.must(h, three)
		msgs = append(msgs, three...)
		all := seen.seen()
		return all[len(all)-1] == len(three)
	})
	b.once(msgs)
}

// TestASlowMessageAlone keeps the others waiting for a moment only.
func TestASlowMessageAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "postgres"))
	slow := newMessages(1)
	uuid, entered, goOn := slow[0].UUID, make(chan struct{}), make(chan struct{})
	h := b.batch(100, func(ctx context.Context, msgs []*message.Message) error {
		if msgs[0].UUID == uuid {
			close(entered)
			<-goOn
		}
		return apply(ctx, msgs)
	}, func(b *millrace.Batch) { b.Linger = 0 })
	first := start(h, slow)
	<-entered
	others := newMessages(5)
	b.must(h, others)
	b.once(others)
	close(goOn)
	require.NoError(t, b.errs(first)[0])
	b.once(append(others, slow...))
}

// TestTheStoreClosesAfterTheBatch waits for a batch that runs, and refuses what comes then.
func TestTheStoreClosesAfterTheBatch(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	closed := make(chan error, 1)
	msgs := newMessages(4)
	b.must(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
		go func() { closed <- b.store.Close(context.WithoutCancel(t.Context())) }() //nolint:contextcheck // it outlives the batch
		return apply(ctx, msgs)
	}), msgs)
	require.NoError(t, rig.Within(t, closed, "the store does not close"))
	b.once(msgs)
	for _, err := range b.errs(start(b.batch(1, apply), newMessages(1))) {
		require.ErrorIs(t, err, inbox.ErrClosed)
	}
}
