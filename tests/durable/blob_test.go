package durable_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestBlobs(t *testing.T) {
	testdb.Conformance(t, slices.Concat(blobBodies, epochPayloadBodies))
}

// blobs is a directory that fails or waits where a test wants it to.
type blobs struct {
	*payload.FileBlobs
	mu      sync.Mutex
	after   func(name string) error // a blob was put
	listed  func()
	stuck   error  // of Delete
	stuckAt string // the only blob that is stuck
}

func newBlobs(t *testing.T) *blobs {
	t.Helper()
	files, err := payload.NewFileBlobs(t.TempDir())
	require.NoError(t, err)
	return &blobs{FileBlobs: files}
}

func (b *blobs) Put(ctx context.Context, name string, body []byte) error {
	if err := b.FileBlobs.Put(ctx, name, body); err != nil || b.after == nil {
		return err
	}
	return b.after(name)
}

func (b *blobs) List(ctx context.Context, after, before string, limit int) ([]string, error) {
	names, err := b.FileBlobs.List(ctx, after, before, limit)
	if b.listed != nil && len(names) > 0 {
		b.listed()
	}
	return names, err
}

func (b *blobs) Delete(ctx context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stuck != nil && (b.stuckAt == "" || b.stuckAt == name) {
		return b.stuck
	}
	return b.FileBlobs.Delete(ctx, name)
}

func (b *blobs) failDelete(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck = err
}

// names are all blobs that are there.
func (b *blobs) names(t *testing.T) []string {
	t.Helper()
	names, err := b.FileBlobs.List(t.Context(), "", "ff", 1000)
	require.NoError(t, err)
	return names
}

const above = 64

// large is a message whose payload does not stay in its row.
func large() *message.Message { return of("bob", strings.Repeat("x\x00", above)) }

// filing returns a store that keeps large payloads in files, and a janitor for whom
// everything is old enough.
func (b *bed) filing(files payload.Blobs, grace time.Duration) (store, janitor *inbox.Store) {
	b.Helper()
	return b.storeWith(inbox.Config{Blobs: files, BlobsAbove: above, BlobGrace: grace}),
		b.storeWith(inbox.Config{Blobs: files, BlobsAbove: above, BlobGrace: time.Microsecond})
}

func (b *bed) registered() int { return b.count(`SELECT COUNT(*) FROM millrace_blobs`) }

var errFull = errors.New("the disk is full")

var blobBodies = []testdb.Body{
	{Name: "payloads of all sizes", Why: "only a larger one leaves its row, all arrive, and nothing is left behind", Run: func(t *testing.T, db *testdb.DB) {
		files := newBlobs(t)
		codec, err := payload.NewAESGCM(&subjects{})
		require.NoError(t, err)
		b := newBed(t, db)
		for name, c := range map[string]struct {
			config inbox.Config
			large  int
		}{
			"table":  {inbox.Config{BlobsAbove: above}, 2},
			"files":  {inbox.Config{BlobsAbove: above, Blobs: files}, 2},
			"sealed": {inbox.Config{BlobsAbove: above, Blobs: files, Payloads: codec}, 4},
			"row":    {inbox.Config{}, 0},
		} {
			store := b.storeWith(c.config)
			q, want := b.queue(store), map[string]string{}
			for _, size := range []int{-1, 0, 1, above - 1, above, above + 1, 1000} {
				msg := of("bob", strings.Repeat("\x00", max(size, 0)))
				if size < 0 {
					msg.Payload = nil
				}
				want[msg.UUID] = string(msg.Payload)
				require.NoError(t, q.Put(t.Context(), "orders", msg))
			}
			assert.Equal(t, c.large, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE payload_ref IS NOT NULL`), name)
			assert.Equal(t, c.large, b.registered(), name)
			s := b.inboxed(storeFirst(store), func(msg *message.Message) error {
				if assert.Contains(t, want, msg.UUID) {
					assert.Equal(t, want[msg.UUID], string(msg.Payload))
				}
				return effect(msg)
			})
			rig.Eventually(b, "all are handled, and nothing is left", func() bool {
				return b.rows() == 0 && b.registered() == 0 && len(files.names(t)) == 0
			})
			require.NoError(t, s.router.Close())
		}
		assert.Equal(t, 4*7, b.count(`SELECT COUNT(*) FROM effects`))
	}},
	{Name: "a blob without its row", Why: "a crash left it: removed when it is old, and not before", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, janitor := b.filing(files, time.Hour)
		files.after = func(string) error { return errFull }
		require.ErrorIs(t, b.queue(store).Put(t.Context(), "orders", large()), errFull)
		files.after = nil
		assert.Zero(t, b.rows())
		msg := large()
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", msg))
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", msg), "a copy")
		assert.Len(t, files.names(t), 3)
		rig.Purge(t, store)
		assert.Len(t, files.names(t), 3, "too young")
		rig.Purge(t, janitor)
		assert.Len(t, files.names(t), 1)
		assert.Equal(t, 1, b.registered())
		assert.Equal(t, string(msg.Payload), string(b.only(store, admin.Received).Payload))
	}},
	{Name: "a row gone before its blob", Why: "the janitor finds what a crash left, in our table and elsewhere", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, janitor := b.filing(files, time.Hour)
		inTable := b.storeWith(inbox.Config{BlobsAbove: above})
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", large()))
		require.NoError(t, b.queue(inTable).Put(t.Context(), "orders", large()))
		rig.Purge(t, janitor)
		assert.Equal(t, 2, b.registered(), "their rows are there")
		db.Do(t, `DELETE FROM millrace_messages`)
		files.failDelete(errFull)
		_, err := janitor.Purge(t.Context())
		require.ErrorIs(t, err, errFull)
		files.failDelete(nil)
		rig.Purge(t, janitor)
		assert.Zero(t, b.registered())
		assert.Empty(t, files.names(t))
	}},
	{Name: "a removal that fails", Why: "the message is completed all the same, and the janitor removes what is left", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, janitor := b.filing(files, time.Hour)
		files.failDelete(errFull)
		msg := large()
		s := b.inboxed(storeFirst(store), effect)
		require.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 && b.registered() == 0 })
		assert.Len(t, files.names(t), 1)
		require.NoError(t, s.router.Close())
		files.failDelete(nil)
		rig.Purge(t, janitor)
		assert.Empty(t, files.names(t))
	}},
	{Name: "a blob that cannot be deleted", Why: "the others are, and it is tried again", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, janitor := b.filing(files, time.Hour)
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", large(), large(), large()))
		b.db.Do(t, `DELETE FROM millrace_messages`)
		names := files.names(t)
		require.Len(t, names, 3)
		files.stuckAt = names[0]
		files.failDelete(errFull)
		for range 2 {
			_, err := janitor.Purge(t.Context())
			require.ErrorIs(t, err, errFull)
			require.ErrorContains(t, err, names[0])
		}
		assert.Equal(t, names[:1], files.names(t))
		files.failDelete(nil)
		rig.Purge(t, janitor)
		assert.Empty(t, files.names(t))
	}},
	{Name: "a blob that was not to be had", Why: "no attempt is spent, and the message is handled when it is back", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, _ := b.filing(files, time.Hour)
		msg := large()
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", msg))
		name := files.names(t)[0]
		require.NoError(t, files.FileBlobs.Delete(t.Context(), name))
		durable := storeFirst(store)
		durable.MaxAttempts = 1
		b.inboxed(durable, effect)
		rig.Eventually(b, "it was tried", func() bool { return b.open(admin.FailedRetryable) == 1 })
		assert.Contains(t, b.only(store, admin.FailedRetryable).LastError, "get the blob "+name)
		require.NoError(t, files.FileBlobs.Put(t.Context(), name, msg.Payload))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	}},
	{Name: "a blob that came back empty", Why: "its handler gets nothing that was not stored", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, _ := b.filing(files, time.Hour)
		msg := large()
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", msg))
		name := files.names(t)[0]
		require.NoError(t, files.FileBlobs.Put(t.Context(), name, nil))
		b.inboxed(storeFirst(store), effect)
		rig.Eventually(b, "it was tried", func() bool { return b.open(admin.FailedRetryable) == 1 })
		assert.Contains(t, b.only(store, admin.FailedRetryable).LastError, "the blob "+name+" is empty")
		require.NoError(t, files.FileBlobs.Put(t.Context(), name, msg.Payload))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	}},
	{Name: "a blob that is gone, while others are not", Why: "its message fails in the end", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, _ := b.filing(files, time.Hour)
		lost := large()
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", lost))
		require.NoError(t, files.FileBlobs.Delete(t.Context(), files.names(t)[0]))
		b.beside(store, func() *message.Message { return of("bob", "a small one") }, func() bool { return b.open(admin.FailedRetryable) == 1 })
		b.beside(store, large, func() bool { return b.open(admin.Parked) == 1 })
		parked := b.only(store, admin.Parked)
		assert.Equal(t, lost.UUID, parked.UUID)
		assert.Equal(t, 3, parked.Attempts)
	}},
	{Name: "a writer slower than the janitor", Why: "the row of a blob that was removed is never committed", Run: func(t *testing.T, db *testdb.DB) {
		b, files := newBed(t, db), newBlobs(t)
		store, _ := b.filing(files, 500*time.Millisecond)
		files.after = func(name string) error {
			rig.Eventually(b, "the janitor takes it for an orphan", func() bool {
				rig.Purge(t, store)
				return len(files.names(t)) == 0
			})
			return nil
		}
		err := b.queue(store).Put(t.Context(), "orders", large())
		require.ErrorContains(t, err, "raise Config.BlobGrace")
		assert.Zero(t, b.rows()+b.registered())
		files.after = nil
		msg := large()
		patient, _ := b.filing(files, time.Hour)
		require.NoError(t, b.queue(patient).Put(t.Context(), "orders", msg))
		assert.Equal(t, string(msg.Payload), string(b.only(store, admin.Received).Payload))
	}},
	{Name: "a janitor that meets a writer", Why: "it waits for the row that is being written", Run: func(t *testing.T, db *testdb.DB) {
		b, files, msg := newBed(t, db), newBlobs(t), large()
		store, janitor := b.filing(files, time.Hour)
		looked, purged := make(chan struct{}, 100), make(chan error, 1)
		files.listed = func() { looked <- struct{}{} }
		handle := millrace.Inbox{Store: store, Consumer: "other"}.Middleware(func(outer *message.Message) ([]*message.Message, error) {
			if err := b.queue(store).Put(outer.Context(), "orders", msg); err != nil {
				return nil, err
			}
			go func() {
				_, err := janitor.Purge(context.WithoutCancel(t.Context()))
				purged <- err
			}()
			<-looked
			select {
			case err := <-purged:
				return nil, fmt.Errorf("the janitor did not wait: %w", err)
			case <-time.After(300 * time.Millisecond): // as long as the row is not committed, it must not be done
			}
			return nil, nil
		})
		require.NoError(t, do(handle, newMessage()))
		require.NoError(t, <-purged)
		assert.Len(t, files.names(t), 1)
		assert.Equal(t, string(msg.Payload), string(b.only(store, admin.Received).Payload))
	}},
}
