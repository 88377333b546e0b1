package batch_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var twins = []testdb.Body{
	{Name: "messages that another process has handled", Why: "they are taken out of the batch and are duplicates", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 20
		msgs := newMessages(n)
		b.must(b.batch(5, apply, on(b.twin())), copies(msgs[:5]))
		var seen sizes
		b.must(b.batch(n, seen.of(apply)), msgs)
		assert.Equal(t, []int{n - 5}, seen.seen())
		b.once(msgs)
		assert.Equal(t, 5, b.events.Count("duplicate"))
	})},
	{Name: "all messages of a batch are copies", Why: "the handler does not run", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(5)
		b.must(b.batch(5, apply, on(b.twin())), copies(msgs))
		b.must(b.batch(5, apply), msgs)
		b.once(msgs)
		b.idle(b.db.DB)
	})},
	{Name: "a collision in a batch", Why: "it is parked, and the others are handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(5)
		b.must(b.batch(5, apply, on(b.twin())), copies(msgs))
		others := append(newMessages(4), message.NewMessage(msgs[0].UUID, []byte("other")))
		b.must(b.batch(5, apply), others)
		b.once(append(msgs, others[:4]...))
		assert.Equal(t, 1, b.events.Count("parked"))
	})},
	{Name: "copies in one batch", Why: "the first joins, and the other waits for it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 10
		msgs := newMessages(n)
		b.must(b.batch(n, apply), append(msgs, copies(msgs)...))
		b.once(msgs)
		assert.Equal(t, n, b.events.Count("duplicate"))
	})},
	{Name: "a copy in another process, at the same moment", Why: "it waits for the batch, and is a duplicate", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 30
		msgs := newMessages(n)
		var stores []*inbox.Store
		for range 3 {
			stores = append(stores, b.twin())
		}
		var answers []<-chan error
		for i, store := range stores {
			// A process that has met copies may take a message by itself, and its last batch is one short.
			h := b.batch(10, apply, on(store), func(b *millrace.Batch) { b.Linger = time.Second })
			for j := range n { // in another order in each process
				answers = append(answers, rig.Handle(h, msgs[(j*7+i*11)%n].Copy()))
			}
		}
		for _, err := range b.errs(answers) {
			require.NoError(t, err)
		}
		b.once(msgs)
	})},
	{Name: "crossing batches", Why: "keys are claimed in one order, so that batches do not deadlock", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n, rounds = 100, 3
		var all []*message.Message
		for range rounds {
			first, second := b.batch(n, apply, on(b.twin())), b.batch(n, apply, on(b.twin()))
			msgs := newMessages(n)
			all = append(all, msgs...)
			answers := append(start(first, copies(msgs)), start(second, copies(msgs))...)
			for _, err := range b.errs(answers) {
				require.NoError(t, err)
			}
		}
		b.once(all)
		for _, e := range b.events.All("contention") { // on a busy machine a lock may be waited for in vain
			assert.NotContains(t, strings.ToLower(e.Err.Error()), "deadlock")
		}
	})},
	{Name: "a copy in another process that fails", Why: "the batch then handles the message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(5)
		claimed, goOn := make(chan struct{}), make(chan struct{})
		first := start(b.batch(1, func(ctx context.Context, msgs []*message.Message) error {
			_ = apply(ctx, msgs)
			close(claimed)
			<-goOn
			return errBoom
		}, on(b.twin())), copies(msgs[:1]))
		<-claimed
		second := start(b.batch(5, apply), msgs)
		time.AfterFunc(50*time.Millisecond, func() { close(goOn) })
		require.ErrorIs(t, b.errs(first)[0], errBoom)
		for _, err := range b.errs(second) {
			require.NoError(t, err)
		}
		b.once(msgs)
	})},
	{Name: "a copy that another process holds for long", Why: "only that message waits, and is nacked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // one transaction there keeps all others waiting
		}
		msgs := newMessages(5)
		claimed, goOn := make(chan struct{}), make(chan struct{})
		first := start(b.batch(1, func(ctx context.Context, msgs []*message.Message) error {
			close(claimed)
			<-goOn
			return apply(ctx, msgs)
		}, on(b.twin())), copies(msgs[:1]))
		<-claimed
		second := start(b.batch(5, apply, func(b *millrace.Batch) { b.Inbox.TwinWait = 5 * time.Second }), msgs)
		for i, err := range b.errs(second) {
			if i == 0 {
				require.ErrorIs(t, err, inbox.ErrInProgress)
			} else {
				require.NoError(t, err)
			}
		}
		close(goOn)
		require.NoError(t, b.errs(first)[0])
		b.once(msgs)
	})},
}
