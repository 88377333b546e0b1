package gate_test

import (
	"context"
	"sync/atomic"
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

// failures counts the runs that failed, and those of them that had a connection when they said so, which is before
// they pause.
type failures struct {
	pool      *sqlx.DB
	all, held atomic.Int64
}

func (f *failures) Observe(_ context.Context, e inbox.Event) {
	if e.Kind != inbox.KindFailed {
		return
	}
	f.all.Add(1)
	if f.pool.Stats().InUse > 0 {
		f.held.Add(1)
	}
}

func wrongSettings(t *testing.T, b *bed) {
	seen := &failures{pool: b.db.Open(t).DB}
	store := rig.NewStore(t, seen.pool, inbox.Config{Observers: []inbox.Observer{seen}})
	elsewhere := rig.NewStore(t, testdb.On(t, b.db.Dialect).DB, inbox.Config{})
	require.NoError(t, elsewhere.Migrate(t.Context()))
	for name, c := range map[string]struct {
		around func(millrace.Inbox, message.HandlerFunc) message.HandlerFunc
		says   string
	}{
		"of the gate": {func(i millrace.Inbox, h message.HandlerFunc) message.HandlerFunc {
			return i.Middleware(millrace.VersionGate{OnGap: 9}.Middleware(h))
		}, "OnGap 9"},
		"two gates": {func(i millrace.Inbox, h message.HandlerFunc) message.HandlerFunc {
			return i.Middleware(millrace.VersionGate{}.Middleware(millrace.VersionGate{OnGap: inbox.GapLatest}.Middleware(h)))
		}, "VersionGate stands twice"},
		"two inboxes": {func(i millrace.Inbox, h message.HandlerFunc) message.HandlerFunc {
			return i.Middleware(i.Middleware(h))
		}, "Inbox stands twice"},
		"two inboxes on two databases": {func(i millrace.Inbox, h message.HandlerFunc) message.HandlerFunc {
			return i.Middleware(millrace.Inbox{Store: elsewhere, Consumer: consumer}.Middleware(h))
		}, "Inbox stands twice"},
		"Before and a gate": {func(i millrace.Inbox, h message.HandlerFunc) message.HandlerFunc {
			i.Before = func(*message.Message) error { return nil }
			return i.Middleware(millrace.VersionGate{}.Middleware(h))
		}, "leave Before out"},
	} {
		h := c.around(millrace.Inbox{Store: store, Consumer: name}, handler)
		msg, began := change("a", 1), time.Now()
		for range 4 {
			rig.MustFail(t, h, again(msg), c.says)
		}
		assert.GreaterOrEqual(t, time.Since(began), (50+100+200+400)*time.Millisecond, name)
	}
	assert.EqualValues(t, 20, seen.all.Load())
	assert.Zero(t, seen.held.Load())
	assert.Empty(t, b.applied("a"))
}
