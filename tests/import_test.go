package tests_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var importer = admin.Operator{Name: "ada", Reason: "we had a table of our own"}

// entries are keys of one part, handled so long ago.
func entries(age time.Duration, keys ...string) iter.Seq2[admin.Imported, error] {
	return func(yield func(admin.Imported, error) bool) {
		for _, key := range keys {
			if !yield(admin.Imported{Key: []string{key}, ProcessedAt: time.Now().Add(-age)}, nil) {
				return
			}
		}
	}
}

// imports has the consumer billing know keys.
func (b *bed) imports(all iter.Seq2[admin.Imported, error], pace ...admin.Pace) admin.ImportReport {
	b.Helper()
	report, err := admin.New(b.store).Import(b.Context(), inbox.ConsumerConfig{Name: "billing"}, all, importer, append(pace, admin.Pace{})[0])
	require.NoError(b, err)
	return report
}

func (b *bed) previews(all iter.Seq2[admin.Imported, error]) admin.ImportReport {
	b.Helper()
	report, err := admin.New(b.store).PreviewImport(b.Context(), inbox.ConsumerConfig{Name: "billing"}, all)
	require.NoError(b, err)
	return report
}

// importBodies: what another system has handled.
var importBodies = []testdb.Body{
	{Name: "an imported key", Why: "a late copy is a duplicate, whatever its payload, and no collision", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("as it was handled")
		assert.Equal(t, admin.ImportReport{New: 1}, b.imports(entries(day, msg.UUID)))
		for _, payload := range []string{"as it was handled", "another"} {
			copied := message.NewMessage(msg.UUID, []byte(payload))
			must(t, b.inbox(effect), copied)
			must(t, b.inbox(effect, on(b.process())), again(copied))
		}
		assert.Zero(t, b.effects())
		assert.Zero(t, b.events.Count("collision"))
		assert.Equal(t, 4, b.events.Count("duplicate"))
		b.nothingOpen()
		must(t, b.inbox(effect), newMessage("x"))
		assert.Equal(t, 1, b.effects(), "others are handled")
	})},
	{Name: "an import of another consumer", Why: "a key counts for the consumer that has handled it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		b.imports(entries(day, msg.UUID))
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = "mail" }), again(msg))
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Epoch = 1 }), again(msg))
		assert.Equal(t, 2, b.effects())
	})},
	{Name: "an import, again", Why: "what is there stays as it is, and the figures say so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		handled, failed := newMessage("x"), newMessage("x")
		must(t, b.inbox(effect), again(handled))
		rig.MustFail(t, b.inbox(alwaysFails,
			recorded), again(failed), errBoom)
		keys := []string{handled.UUID, failed.UUID, "a", "b", "a"}
		before := b.count(`SELECT SUM(processed_at % 1000003) FROM millrace_claims`)
		assert.Equal(t, admin.ImportReport{New: 2, Known: 2, Open: 1}, b.imports(entries(day, keys...)))
		assert.Equal(t, admin.ImportReport{Known: 4, Open: 1}, b.imports(entries(2*day, keys...)))
		assert.Equal(t, before, b.count(`SELECT SUM(processed_at % 1000003) FROM millrace_claims WHERE result <> 4`))
		must(t, b.inbox(effect, recorded), again(failed))
		assert.Equal(t, 2, b.effects(), "what is open goes on")
	})},
	{Name: "an imported key and its retention", Why: "it is forgotten when its message is, not its import", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		report := b.imports(func(yield func(admin.Imported, error) bool) {
			for n, age := range []time.Duration{6 * day, day, 8 * day} {
				if !yield(admin.Imported{Key: []string{fmt.Sprint(n)}, ProcessedAt: time.Now().Add(-age)}, nil) {
					return
				}
			}
			yield(admin.Imported{Key: []string{"now"}}, nil)
		})
		assert.Equal(t, admin.ImportReport{New: 3, Expired: 1}, report)
		b.purge(0)
		b.age(2 * day)
		b.purge(1)
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "a message older than all that was imported", Why: "what is too old to import is doubted like what was purged", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		must(t, b.inbox(effect), newMessage("x"))
		b.imports(entries(8*day, msg.UUID))
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.MessageTime = madeAt(9 * day) }), again(msg))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 1, b.events.Count("parked"))
	})},
	{Name: "a message of 1970", Why: "no time is now, and that one is too old", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		report := b.imports(func(yield func(admin.Imported, error) bool) {
			_ = yield(admin.Imported{Key: []string{"old"}, ProcessedAt: time.Unix(0, 0)}, nil) && yield(admin.Imported{Key: []string{"new"}}, nil)
		})
		assert.Equal(t, admin.ImportReport{New: 1, Expired: 1}, report)
	})},
	{Name: "keys that cannot be imported", Why: "each is refused with its reason, and the others go on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		report := b.imports(func(yield func(admin.Imported, error) bool) {
			_ = yield(admin.Imported{}, nil) && yield(admin.Imported{Key: []string{""}}, nil) &&
				yield(admin.Imported{Key: []string{"a", "b"}}, nil) && yield(admin.Imported{Key: []string{"\x00\xff"}}, nil) &&
				yield(admin.Imported{Key: []string{"late"}, ProcessedAt: time.Now().Add(day)}, nil) &&
				yield(admin.Imported{Problem: errBoom}, nil) && yield(admin.Imported{Key: []string{"good"}}, nil)
		})
		assert.Equal(t, 1, report.New)
		assert.Equal(t, 6, report.Refused)
		var reasons []string
		for _, r := range report.Refusals {
			reasons = append(reasons, fmt.Sprintf("%d: %v", r.Number, r.Err))
		}
		for n, want := range []string{
			"1: no key: it has 0 parts, and uuid has 1: uuid", "2: no key: uuid is empty", "3: no key: it has 2 parts, and uuid has 1: uuid",
			"4: no key: uuid is 2 bytes, but not text: have the source write it as it is in messages", "6: boom",
		} {
			assert.Equal(t, want, reasons[n])
		}
		assert.Contains(t, reasons[5], "which is still to come")
	})},
	{Name: "an import that ends early", Why: "what is committed counts, and another call goes on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		keys := make([]string, 1200)
		for n := range keys {
			keys[n] = fmt.Sprintf("order-%d", n)
		}
		torn := func(yield func(admin.Imported, error) bool) {
			n := 0
			for in, err := range entries(day, keys...) {
				if n++; n > 700 {
					yield(admin.Imported{}, errBoom)
					return
				}
				if !yield(in, err) {
					return
				}
			}
		}
		config, mark, told := inbox.ConsumerConfig{Name: "billing"}, int64(0), 0
		fast := admin.Pace{PerSecond: 1e6, Mark: &mark, Progress: func(n int) { told = n }}
		report, err := admin.New(b.store).Import(t.Context(), config, torn, importer, fast)
		require.ErrorIs(t, err, errBoom)
		assert.Equal(t, admin.ImportReport{New: 700}, report)
		assert.EqualValues(t, 700, mark)
		assert.Equal(t, 700, told)
		assert.Equal(t, admin.ImportReport{New: 500, Known: 700}, b.previews(entries(day, keys...)))
		assert.Equal(t, admin.ImportReport{New: 500}, b.imports(entries(day, keys...), fast), "it goes on behind the mark")
		assert.EqualValues(t, 1200, mark)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		report, err = admin.New(b.store).Import(ctx, config, entries(day, "x"), importer, admin.Pace{})
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, admin.ImportReport{}, report)
		assert.Equal(t, 1200, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "a preview of an import", Why: "it changes nothing, and asks for no consumer", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		assert.Equal(t, admin.ImportReport{New: 2, Known: 1}, b.previews(entries(day, "a", "b", "a")))
		for _, table := range []string{"claims", "consumers", "audit"} {
			assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_`+table), table)
		}
	})},
	{Name: "an import while a handler runs with the key", Why: "it waits for the handler, which keeps its claim", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		b.imports(entries(day, "registered"))
		ended := make(chan admin.ImportReport, 1)
		importing := func() {
			report, err := admin.New(b.store).Import(context.WithoutCancel(t.Context()), inbox.ConsumerConfig{Name: "billing"},
				entries(day, msg.UUID, "another"), importer, admin.Pace{})
			assert.NoError(t, err)
			ended <- report
		}
		must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			go importing()
			b.untilSomeoneWaits()
			return effect(msg)
		}), again(msg))
		assert.Equal(t, admin.ImportReport{New: 1, Known: 1}, <-ended)
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "two imports at once", Why: "each key is new for one of them, and neither stops the other", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		up, down := make([]string, 300), make([]string, 300)
		for n := range up {
			up[n] = fmt.Sprintf("order-%d", n)
			down[len(up)-1-n] = up[n]
		}
		reports := make(chan admin.ImportReport, 2)
		for _, keys := range [][]string{up, down} {
			store := b.process()
			go func() {
				report, err := admin.New(store).Import(context.WithoutCancel(t.Context()), inbox.ConsumerConfig{Name: "billing"},
					entries(day, keys...), importer, admin.Pace{PerSecond: 50_000})
				assert.NoError(t, err)
				reports <- report
			}()
		}
		one, other := <-reports, <-reports
		assert.Equal(t, 300, one.New+other.New)
		assert.Equal(t, 300, one.Known+other.Known)
	})},
	{Name: "an import is remembered", Why: "an operator sees who did it, and that a claim is imported", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		b.imports(entries(day, "a", ""))
		audit, err := admin.New(b.store).Audit(t.Context(), admin.ConsumerFilter{}, 0, 10)
		require.NoError(t, err)
		require.Len(t, audit, 2)
		assert.Equal(t, "ended: 1 new, 0 known, 0 open, 0 expired, 1 refused", audit[0].Detail)
		assert.Equal(t, "begun; the key is uuid", audit[1].Detail)
		assert.Equal(t, "import", audit[1].Action)
		assert.Equal(t, importer, audit[1].Operator)
		story := rig.Story(t, b.store, "a")
		require.Len(t, story.Claims, 1)
		assert.True(t, story.Claims[0].Imported)
		assert.True(t, story.Claims[0].Completed)
		var archived []inbox.ExpiredClaim
		store := b.newStore(b.db.DB, inbox.Config{Archive: func(_ context.Context, all []inbox.ExpiredClaim) error {
			archived = append(archived, all...)
			return nil
		}})
		b.age(8 * day)
		rig.Purge(t, store)
		imported := 0
		for _, a := range archived {
			if a.Imported {
				imported++
			}
		}
		assert.Len(t, archived, 2)
		assert.Equal(t, 1, imported)
	})},
	{Name: "an import into a consumer with settings", Why: "what the import does not say stays, such as that replays are refused", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		set := func(i *millrace.Inbox) { i.Retention, i.Window, i.OnReplay = inbox.Forever, 30*day, inbox.ReplayRefuse }
		must(t, b.inbox(effect, set), newMessage("x"))
		assert.Equal(t, admin.ImportReport{New: 1}, b.previews(entries(20*day, "a")))
		assert.Equal(t, admin.ImportReport{New: 1}, b.imports(entries(20*day, "a")))
		known, err := admin.New(b.store).Consumers(t.Context())
		require.NoError(t, err)
		require.Len(t, known, 1)
		assert.Equal(t, inbox.Forever, known[0].Retention)
		assert.Equal(t, 30*day, known[0].Window)
		assert.Equal(t, inbox.ReplayRefuse, known[0].OnReplay)
		b.age(8 * day)
		b.purge(0)
		said := inbox.ConsumerConfig{Name: "billing", Options: inbox.Options{Retention: 10 * day, Window: day, OnReplay: inbox.ReplaySuppress}}
		_, err = admin.New(b.store).Import(t.Context(), said, entries(day, "b"), importer, admin.Pace{})
		require.NoError(t, err)
		known, err = admin.New(b.store).Consumers(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 10*day, known[0].Retention, "what it says counts")
		assert.Equal(t, day, known[0].Window)
		assert.Equal(t, inbox.ReplaySuppress, known[0].OnReplay)
	})},
	{Name: "wrong imports", Why: "each says what is wrong, and nothing is stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		good := inbox.ConsumerConfig{Name: "billing"}
		imports := func(ctx context.Context, config inbox.ConsumerConfig, by admin.Operator, pace admin.Pace) error {
			_, err := admin.New(b.store).Import(ctx, config, entries(day, "a"), by, pace)
			return err
		}
		require.ErrorContains(t, imports(t.Context(), good, admin.Operator{}, admin.Pace{}), "needs a Name and a Reason")
		require.ErrorContains(t, imports(t.Context(), good, importer, admin.Pace{PerSecond: -1}), "PerSecond -1 is negative")
		require.ErrorContains(t, imports(t.Context(), inbox.ConsumerConfig{}, importer, admin.Pace{}), "needs a name")
		require.ErrorContains(t, imports(t.Context(), inbox.ConsumerConfig{Name: "billing", Options: inbox.Options{Retention: time.Second}}, importer, admin.Pace{}), "Retention")
		other := inbox.ConsumerConfig{Name: "billing", Key: inbox.ByMetadata("order_id")}
		require.ErrorIs(t, imports(t.Context(), other, importer, admin.Pace{}), inbox.ErrKeyChanged)
		_, err := admin.New(b.store).PreviewImport(t.Context(), other, entries(day, "a"))
		require.ErrorIs(t, err, inbox.ErrKeyChanged)
		first := inbox.ConsumerConfig{Name: "new", Key: inbox.FirstOf(inbox.ByUUID(), inbox.ByPayload())}
		require.ErrorContains(t, imports(t.Context(), first, importer, admin.Pace{}), "cannot be made from parts")
		must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			assert.ErrorContains(t, imports(msg.Context(), good, importer, admin.Pace{}), "not in a handler's transaction")
			return effect(msg)
		}), newMessage("x"))
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
}
