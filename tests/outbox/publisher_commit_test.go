package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/testdb"
)

// commitBodies: what is told of commits, and many of them at a time.
var commitBodies = []testdb.Body{
	{Name: "AfterCommit", Why: "relays on another pool are woken once per commit, and by nothing else", Run: func(t *testing.T, db *testdb.DB) {
		var commits told
		times := func(o *office, want int) {
			o.Helper()
			assert.EqualValues(o, want, commits.Swap(0))
		}
		w := newWire(t, db)
		w.out = w.publisher(commits.config)
		w.each(
			behaviour{"once for InTx, however much is published", func(o *office) {
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					require.NoError(o, o.put(ctx, "a", "b"))
					require.NoError(o, outbox.InTx(ctx, o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
						return o.put(ctx, "c")
					}))
					times(o, 0)
					return o.out.Publish("invoices", heavy(ctx, "d", "e")...)
				}))
				times(o, 1)
			}},
			behaviour{"not without messages", func(o *office) {
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
					require.NoError(o, o.out.Publish("orders"))
					return work(ctx, tx)
				}))
				times(o, 0)
			}},
			behaviour{"not after a rollback", func(o *office) {
				require.Error(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					require.NoError(o, o.put(ctx, "a"))
					return errRefused
				}))
				times(o, 0)
			}},
			behaviour{"not after a commit that failed", func(o *office) {
				w.faults.Set(faults.Plan{Before: func(_ context.Context, call string) error {
					if call == faults.Commit {
						return errRefused
					}
					return nil
				}})
				err := outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error { return o.put(ctx, "a") })
				w.faults.Set(faults.Plan{})
				require.ErrorIs(o, err, errRefused)
				times(o, 0)
				assert.Empty(o, o.stored())
			}},
			behaviour{"once for each publisher", func(o *office) {
				var others told
				other := o.publisher(others.config)
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					require.NoError(o, o.put(ctx, "a"))
					return other.Publish("orders", carried(ctx, "b")...)
				}))
				times(o, 1)
				assert.EqualValues(o, 1, others.Load())
			}},
			behaviour{"by Wake for a transaction of the service", func(o *office) {
				tx := o.begin().tx
				require.NoError(o, o.put(outbox.WithTx(o.Context(), tx), "a"))
				require.NoError(o, tx.Commit())
				times(o, 0)
				o.out.Wake()
				times(o, 1)
			}},
			behaviour{"once for a standalone call", func(o *office) {
				out := o.publisher(standalone, commits.config)
				require.NoError(o, out.Publish("orders", carried(o.Context(), "a", "b")...))
				times(o, 1)
				require.NoError(o, out.Publish("orders", heavy(o.Context(), "c", "d")...))
				times(o, 1)
			}},
			behaviour{"once for a handler that succeeds", func(o *office) {
				var fail error
				h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
					require.NoError(o, o.put(msg.Context(), "a"))
					require.NoError(o, o.put(msg.Context(), "b"))
					times(o, 0)
					return nil, fail
				})
				msg := newOrder()
				fail = errRefused
				require.ErrorIs(o, do(h, msg.Copy()), errRefused)
				times(o, 0)
				fail = nil
				require.NoError(o, do(h, msg.Copy()))
				times(o, 1)
				require.NoError(o, do(h, msg.Copy()))
				times(o, 0)
			}},
			behaviour{"when the transaction is out of the way", func(o *office) {
				var within error
				out := o.publisher(func(c *outbox.Config) {
					c.AfterCommit = func() { within = outbox.InTx(o.Context(), o.db.DB, work) }
				})
				require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					return out.Publish("orders", carried(ctx, "a")...)
				}))
				require.NoError(o, within)
				assert.Equal(o, 1, o.worked())
			}},
		)
	}},
	{Name: "many publishers at once", Why: "a Publisher is safe for concurrent use", Run: func(t *testing.T, db *testdb.DB) {
		const services, rounds = 8, 6
		o := newOffice(t, db)
		alone := o.publisher(standalone)
		var want sync.Map
		var all sync.WaitGroup
		for s := range services {
			all.Go(func() {
				for r := range rounds {
					id := fmt.Sprintf("%d-%d", s, r)
					var fail error
					if r%3 == 0 {
						fail = errRefused
					}
					err := outbox.InTx(t.Context(), db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
						assert.NoError(t, work(ctx, tx))
						assert.NoError(t, o.put(ctx, id, id+"-too"))
						return fail
					})
					assert.ErrorIs(t, err, fail)
					if fail == nil {
						want.Store(id, 1)
						want.Store(id+"-too", 1)
					}
					assert.NoError(t, alone.Publish("orders", carried(t.Context(), id+"-alone")...))
					want.Store(id+"-alone", 1)
				}
			})
		}
		all.Wait()
		stored := o.stored()
		for _, id := range stored {
			_, wanted := want.LoadAndDelete(id)
			assert.True(t, wanted, id)
		}
		want.Range(func(id, _ any) bool { return assert.Fail(t, "lost", id) })
		assert.Equal(t, services*rounds*2/3, o.worked())
		assert.Len(t, stored, services*rounds*(2*2+3)/3)
	}},
}

// told counts the calls of AfterCommit.
type told struct{ atomic.Int64 }

func (c *told) config(config *outbox.Config) { config.AfterCommit = func() { c.Add(1) } }
