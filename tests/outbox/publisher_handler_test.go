package outbox_test

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
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// handlerBodies: messages of a handler below middleware.Inbox.
var handlerBodies = []testdb.Body{
	{Name: "a handler's transaction", Why: "nothing that a run produced is sent unless the run is committed", Run: func(t *testing.T, db *testdb.DB) {
		newOffice(t, db).each(
			behaviour{"undoes what a run published that panicked", func(o *office) {
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					require.NoError(o, o.put(msg.Context(), "a"))
					panic("boom")
				})
				assert.PanicsWithValue(o, "boom", func() { _, _ = h(newOrder()) })
				assert.Empty(o, o.stored())
			}},
			behaviour{"is used by who publishes", func(o *office) {
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					return nil, o.put(msg.Context(), "a")
				}, requireTx)
				require.NoError(o, do(h, newOrder()))
				h = o.handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }, requireTx)
				require.ErrorIs(o, do(h, newOrder()), inbox.ErrTxNotUsed)
			}},
			behaviour{"is over when the handler has returned", func(o *office) {
				handled := make(chan context.Context, 1)
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					handled <- msg.Context()
					return nil, o.put(msg.Context(), "a")
				})
				require.NoError(o, do(h, newOrder()))
				late := context.WithoutCancel(<-handled)
				require.ErrorIs(o, o.put(late, "b"), outbox.ErrTxEnded)
				err := o.publisher(standalone).Publish("orders", carried(late, "c")...)
				require.ErrorIs(o, err, outbox.ErrTxEnded, "it was to be stored in a transaction")
				assert.Equal(o, []string{"a"}, o.stored())
			}},
		)
	}},
	{Name: "InTx in a handler", Why: "it runs in the handler's transaction and waits for no other", Run: func(t *testing.T, db *testdb.DB) {
		newOffice(t, db.Open(t, testdb.Pool(1))).each(
			behaviour{"joins", func(o *office) {
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					own, err := inbox.Tx(msg.Context())
					require.NoError(o, err)
					return nil, outbox.InTx(msg.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
						assert.Same(o, own, tx)
						require.NoError(o, work(ctx, tx))
						return o.put(ctx, "a")
					})
				})
				require.NoError(o, do(h, newOrder()))
				assert.Equal(o, 1, o.worked())
				assert.Equal(o, []string{"a"}, o.stored())
			}},
			behaviour{"is undone with the run", func(o *office) {
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					require.NoError(o, outbox.InTx(msg.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
						require.NoError(o, work(ctx, tx))
						return o.put(ctx, "a")
					}))
					return nil, errRefused
				})
				require.ErrorIs(o, do(h, newOrder()), errRefused)
				assert.Zero(o, o.worked())
				assert.Empty(o, o.stored())
			}},
			behaviour{"counts as use of the transaction", func(o *office) {
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					return nil, outbox.InTx(msg.Context(), o.db.DB, work)
				}, requireTx)
				require.NoError(o, do(h, newOrder()))
				assert.Equal(o, 1, o.worked())
			}},
		)
	}},
	{Name: "operators' calls in a handler", Why: "they run in the handler's transaction and wait for no other", Run: func(t *testing.T, db *testdb.DB) {
		o := newOffice(t, db.Open(t, testdb.Pool(1)))
		require.NoError(t, o.publisher(standalone).Publish("orders", carried(t.Context(), "retried", "discarded")...))
		o.db.Do(t, `UPDATE millrace_outbox SET status = ?`, rowParked)
		require.NoError(t, do(o.handler(o.operates), newOrder()))
		assert.Equal(t, []string{"retried", "new"}, o.stored())
	}},
}

// operates is a handler that calls all that an operator may.
func (o *office) operates(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	require.NoError(o, o.put(ctx, "new"))
	figures, err := o.out.Backlog(ctx, outbox.BacklogOptions{})
	require.NoError(o, err)
	assert.Equal(o, []int{1, 2}, []int{figures.Pending.N, figures.Parked.N})
	parked, err := o.out.Parked(ctx, 0, 10)
	require.NoError(o, err)
	require.Len(o, parked, 2)
	listed, err := o.out.ListParked(ctx, 0, 10)
	require.NoError(o, err)
	assert.Len(o, listed, 2)
	_, err = o.out.FindParked(ctx, parked[0].ID)
	require.NoError(o, err)
	_, err = o.out.Reveal(ctx, parked[0].ID, ann)
	require.NoError(o, err)
	require.NoError(o, o.out.Retry(ctx, parked[0].ID, ann))
	require.NoError(o, o.out.Discard(ctx, parked[1].ID, ann))
	_, err = o.out.FindParked(ctx, parked[1].ID)
	require.ErrorIs(o, err, outbox.ErrNotFound)
	caused, err := o.out.CausedBy(ctx, "billing", msg.UUID, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	require.NoError(o, err)
	assert.Len(o, caused, 1)
	_, err = o.out.Archive(ctx, outbox.ArchiveFilter{}, 0, 10)
	require.NoError(o, err)
	_, err = o.out.CountArchive(ctx, outbox.ArchiveFilter{})
	require.NoError(o, err)
	_, err = o.out.Shards(ctx)
	return nil, err
}

func requireTx(i *millrace.Inbox) { i.RequireTx = true }
