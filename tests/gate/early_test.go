package gate_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var serial atomic.Int64

// crowd has many messages in flight at once, so that the gate knows that the source does so.
func (b *bed) crowd(h message.HandlerFunc) {
	b.Helper()
	var start, all sync.WaitGroup
	start.Add(1)
	for range 40 {
		msg := change("crowd "+strconv.FormatInt(serial.Add(1), 10), 1)
		all.Go(func() {
			start.Wait()
			_, err := h(msg)
			assert.NoError(b, err)
		})
	}
	start.Done()
	all.Wait()
}

// lastEarly is the last version of a scene. The more there are, the less often a busy machine has all applied within the second
// for which the first of them waits.
const lastEarly = 6

// early delivers versions lastEarly … 2 of an aggregate, which all come before their predecessors, and returns once all of
// them wait or have ended.
func (b *bed) early(h message.HandlerFunc, l *waitLog, aggregate string) (ends []<-chan error) {
	b.Helper()
	before, held := int(l.begun.Load()), b.events.Count("held")
	for v := int64(lastEarly); v > 1; v-- {
		ends = append(ends, rig.Handle(h, change(aggregate, v)))
	}
	rig.Eventually(b, "all wait", func() bool { return int(l.begun.Load())+b.events.Count("held") >= before+held+len(ends) })
	return ends
}

// waitLog counts the messages that began to wait in memory, and calls then, if it is set, for each.
type waitLog struct {
	watermill.NopLogger

	begun atomic.Int64
	then  func()
}

func (l *waitLog) Debug(text string, _ watermill.LogFields) {
	if strings.HasPrefix(text, "inbox: a message waits in memory") {
		l.begun.Add(1)
		if l.then != nil {
			l.then()
		}
	}
}

func (l *waitLog) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// talks returns the store of another process, which logs what waits.
func (b *bed) talks(pool *sqlx.DB) (*inbox.Store, *waitLog) {
	b.Helper()
	l := &waitLog{}
	store := b.newStore(pool, inbox.Config{Logger: l})
	b.queued(store)
	return store, l
}

// untilKept plays a scene with new aggregates behind h until it finds nothing stored: on a busy machine a message may
// have waited for too long. Whatever happens, nothing is applied out of order, and nothing is lost. The gate forgets
// within 20 seconds what the source has in flight, so each scene begins with a crowd.
func (b *bed) untilKept(h message.HandlerFunc, scene func(aggregate string) []<-chan error) {
	b.Helper()
	rig.Eventually(b, "early messages wait in memory", func() bool {
		b.crowd(h)
		aggregate := "scene " + strconv.FormatInt(serial.Add(1), 10)
		before, gaps := b.events.Count("held"), b.events.Count("gap")
		for _, end := range scene(aggregate) {
			require.NoError(b, rig.Within(b, end, "the wait ends"))
		}
		applied, held := b.applied(aggregate), b.events.Count("held")-before
		require.Equal(b, upTo(int64(len(applied))), applied)
		require.Equal(b, lastEarly, len(applied)+b.count(`SELECT COUNT(*) FROM millrace_messages WHERE aggregate = ?`, append([]byte{2}, aggregate...)))
		return held == 0 && b.events.Count("gap") == gaps
	})
}

// Messages that come a little too early wait in memory, un-acked, and each is applied when its predecessor is.
func TestEarlyMessagesWaitInMemory(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		pool.DB.SetMaxOpenConns(4) // fewer than messages wait
		store, l := b.talks(pool.DB)
		h := b.gated(store, millrace.VersionGate{}, handler)
		reads := countReads(pool)
		var began time.Time
		b.untilKept(h, func(aggregate string) []<-chan error {
			began = time.Now()
			reads.Store(0)
			ends := b.early(h, l, aggregate)
			must(t, h, change("beside "+aggregate, 1)) // the pool is free
			must(t, h, change(aggregate, 1))
			return ends
		})
		most := 20 + int64(time.Since(began)/(500*time.Millisecond)) // it asks that often
		assert.Less(t, reads.Load(), most, "one of them asks for all")
	}))
}

// A predecessor that another process, or an operator, applies ends the wait.
func TestAnotherProcessEndsTheWait(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		other := b.process()
		b.queued(other)
		store, l := b.talks(b.db.DB)
		h, theirs := b.gated(store, millrace.VersionGate{}, handler), b.gated(other, millrace.VersionGate{}, handler)
		b.untilKept(h, func(aggregate string) []<-chan error {
			ends := b.early(h, l, aggregate)
			must(t, theirs, change(aggregate, 1))
			return ends
		})
		rig.Eventually(b, "an operator ends the wait", func() bool {
			b.crowd(h)
			aggregate, held := "set "+strconv.FormatInt(serial.Add(1), 10), b.events.Count("held")
			before := l.begun.Load()
			end := rig.Handle(h, change(aggregate, 3))
			rig.Eventually(b, "it waits", func() bool { return l.begun.Load() > before || b.events.Count("held") > held })
			require.NoError(t, admin.New(store).SetVersion(t.Context(), inbox.Aggregate{Consumer: consumer, ID: aggregate}, 2, ada))
			require.NoError(t, rig.Within(t, end, "the wait ends"))
			return b.events.Count("held") == held && len(b.applied(aggregate)) == 1
		})
	}))
}

// A predecessor that does not come is a gap, which OnGap decides about.
func TestAWaitInVain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		hold, fail := b.gated(b.store, millrace.VersionGate{}, handler), b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapFail}, handler)
		b.crowd(hold)
		b.crowd(fail)
		must(t, hold, change("a", 3), change("a", 1), change("a", 3))
		assert.Equal(t, 2, b.open(admin.Held))
		assert.Equal(t, 2, b.events.Count("gap"))
		assert.Equal(t, inbox.GapError{Aggregate: "a", Version: 5, Current: 1}, mustGap(t, fail, change("a", 5)))
	}))
}

// A handler that fails leaves its successor waiting, and the next delivery of the message ends the wait.
func TestAWaitBehindAFailure(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		store, l := b.talks(b.db.DB)
		h := b.gated(store, millrace.VersionGate{}, handler)
		fails := b.gated(store, millrace.VersionGate{}, func(*message.Message) ([]*message.Message, error) { return nil, errFails })
		b.untilKept(h, func(aggregate string) []<-chan error {
			ends := b.early(h, l, aggregate)
			first := change(aggregate, 1)
			rig.MustFail(t, fails, again(first), errFails)
			must(t, h, first)
			return ends
		})
	}))
}

// Who closes ends the wait: the source has the message still.
func TestAWaitThatIsEnded(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		store, l := b.talks(b.db.DB)
		h := b.gated(store, millrace.VersionGate{OnGap: inbox.GapFail}, handler)
		rig.Eventually(t, "a message waits in memory", func() bool {
			b.crowd(h)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l.then = cancel
			msg := change("a", 2)
			msg.SetContext(ctx)
			err := rig.Within(t, rig.Handle(h, msg), "the wait ends")
			return l.begun.Load() > 0 && assert.ErrorIs(t, err, context.Canceled)
		})
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_messages`))
	}))
}

// A middleware between inbox and gate may change the version: then the gate alone knows it.
func TestAMiddlewareThatChangesVersions(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		unpack := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				aggregate, version, packed := strings.Cut(msg.Metadata.Get("packed"), "/")
				if !packed {
					return nil, errFails
				}
				msg.Metadata.Set(inbox.AggregateField, aggregate)
				msg.Metadata.Set(inbox.VersionField, version)
				return h(msg)
			}
		}
		b.queued(b.store)
		h := millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{TwinWait: rig.Patience}}.Middleware(unpack(millrace.VersionGate{}.Middleware(handler)))
		var all sync.WaitGroup
		for n := range int64(100) {
			msg := change(fmt.Sprint("a", n%20), n/20+6) // by its envelope, it would wait
			msg.Metadata.Set("packed", fmt.Sprintf("a%d/%d", n%20, n/20+1))
			if n%20 == 0 {
				all.Wait()
			}
			all.Go(func() {
				_, err := h(msg)
				assert.NoError(t, err)
			})
		}
		all.Wait()
		for n := range 20 {
			assert.Equal(t, upTo(5), b.applied(fmt.Sprint("a", n)))
		}
		assert.Zero(t, b.events.Count("gap"))
	}))
}

// Starts may answer otherwise before a middleware that unpacks messages than at the gate, which decides about a gap all the same.
func TestStartsBeforeAMiddlewareThatUnpacks(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		var tries atomic.Int64
		unpack := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if msg.Metadata.Get("counted") != "" && tries.Add(1) > 2 {
					return nil, errFails // else it might be tried for ever
				}
				return h(marked(msg, "unpacked"))
			}
		}
		starts := func(msg *message.Message) bool { return msg.Metadata.Get("unpacked") == "" }
		h := b.between(unpack, millrace.VersionGate{Starts: starts})
		b.crowd(h)
		must(t, h, change("a", 1), marked(change("a", 3), "counted"))
		assert.Equal(t, 1, b.open(admin.Held))
	}))
}

// A source of which nothing is left but messages that wait delivers no predecessor. They give way.
func TestASourceWhoseMessagesAllWait(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		const width, last = 8, 60
		messages := make([]*message.Message, 0, last)
		for v := int64(last); v > 0; v-- {
			messages = append(messages, change("a", v))
		}
		sub, err := pubsub.Durable{Store: b.store, Consumer: consumer}.Decorate(&list{messages: messages, width: width})
		require.NoError(t, err)
		router := b.newRouter(b.store, millrace.VersionGate{})
		router.AddConsumerHandler(consumer, "changes", sub, apply)
		began := time.Now()
		rig.Run(t, router)
		b.eventually("a", last)
		t.Logf("%d messages in %v, %d of them held", last, time.Since(began), b.events.Count("held"))
	}))
}
