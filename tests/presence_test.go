package tests_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	relaying "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestProcessesAreListed(t *testing.T) {
	testdb.Conformance(t, presenceBodies)
}

// present lists the processes of a name, or all.
func (b *bed) present(name string) []admin.Process {
	b.Helper()
	all, err := admin.New(b.store).Processes(b.Context(), name, "", 100)
	require.NoError(b, err)
	return all
}

// worker is a store whose background work looks at everything at once.
func (b *bed) worker(config inbox.Config, opts ...testdb.Option) *inbox.Store {
	b.Helper()
	config.PurgeInterval = 10 * time.Millisecond
	return b.newStore(b.db.Open(b, opts...).DB, config)
}

// silent writes a process that was last heard of so long ago.
func (b *bed) silent(name string, token int, ago time.Duration, serves string) {
	b.Helper()
	b.exec(`INSERT INTO millrace_processes (namespace, name, token, host, pid, program, version, millrace, consumers, serves, started_at, seen_at)
		VALUES (?, ?, ?, ?, 4711, ?, ?, ?, 3, ?, 1, ?)`, []byte{}, []byte(name), token, []byte("web-1"), []byte("shop/cmd"), []byte("v1.4.2"),
		[]byte("v0.9.0"), []byte(serves), time.Now().Add(-ago).UnixMicro())
}

var presenceBodies = []testdb.Body{
	{Name: "what a process serves", Why: "its handlers and queues, each Store by itself, until the last run of its work ends", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		long := strings.Repeat("a handler's name ", 40)
		store := b.worker(inbox.Config{Process: "web-1", Version: "v1.4.2"}, testdb.Pool(1))
		must(t, b.inbox(effect, on(store)), newMessage("x"))
		other := b.worker(inbox.Config{Process: "web-1"})
		stopOther := rig.Work(t, other)
		first, cancel := context.WithCancel(t.Context())
		ended := rig.Go(func() error { return store.Run(first) })
		rig.Eventually(t, "both are listed", func() bool { return len(b.present("web-1")) == 2 })
		again := rig.Go(func() error { return store.Run(t.Context()) })

		rig.Queue(t, store, inbox.QueueConfig{Consumer: "billing"})
		_, err := store.Handler(inbox.ConsumerConfig{Name: "mail", Handler: long, Options: inbox.Options{Epoch: 2}}, effectless)
		require.NoError(t, err)
		_, err = store.Leases().Handler(inbox.LeaseConfig{Name: "mail", Key: inbox.ByUUID()}, effectless)
		require.NoError(t, err)
		stamped := newMessage("x")
		relaying.Stamp(stamped, "order-7", 1)
		gated := b.inbox(millrace.VersionGate{}.Middleware(effect), on(store), func(i *millrace.Inbox) { i.Consumer = "gated" })
		many := millrace.Batch{Inbox: millrace.Inbox{Store: store, Consumer: "many"}}.ConsumerHandler(
			func(context.Context, []*message.Message) error { return nil })
		inTime := func(deliver func() error) { // the background work may have the one connection
			rig.Eventually(t, "it is handled", func() bool {
				err := deliver()
				if err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				return err == nil
			})
		}
		inTime(func() error { _, err := gated(stamped.Copy()); return err })
		inTime(func() error { return many(newMessage("y")) })
		want := []admin.Serving{
			{Consumer: "billing", Queue: true}, {Consumer: "gated", Gate: true}, {Consumer: "mail", Leases: true},
			{Consumer: "mail", Epoch: 2, Handler: long[:255]}, {Consumer: "many", Batch: true},
		}
		of := func(version string) (found admin.Process) {
			for _, p := range b.present("web-1") {
				if p.Version == version {
					found = p
				}
			}
			return found
		}
		rig.Eventually(t, "all that it serves is listed", func() bool { return slices.Equal(of("v1.4.2").Serves, want) })
		p := of("v1.4.2")
		host, err := os.Hostname()
		require.NoError(t, err)
		assert.Equal(t, []any{"web-1", host, int64(os.Getpid()), true, 0}, []any{p.Name, p.Host, p.PID, p.Alive, p.More})
		assert.Contains(t, p.Program, ".test")
		assert.WithinDuration(t, p.At, p.SeenAt, time.Minute)
		assert.WithinDuration(t, p.At, p.StartedAt, time.Minute)

		b.exec(`DELETE FROM millrace_processes WHERE version = ?`, []byte("v1.4.2")) // as the janitor of another process, if this one was frozen
		rig.Queue(t, store, inbox.QueueConfig{Consumer: "shipping"})
		rig.Eventually(t, "it is listed again", func() bool { return len(of("v1.4.2").Serves) == len(want)+1 })
		assert.WithinDuration(t, p.StartedAt, of("v1.4.2").StartedAt, 5*time.Second)

		cancel()
		require.NoError(t, <-ended)
		assert.Len(t, b.present("web-1"), 2, "another run goes on")
		require.NoError(t, store.Close(t.Context()))
		require.NoError(t, <-again)
		stopOther()
		b.leaves("closed", func(store *inbox.Store, _ func()) { require.NoError(t, store.Close(t.Context())) })
		b.leaves("stopped", func(_ *inbox.Store, stop func()) { stop() })
	})},
	{Name: "processes that died", Why: "they are shown as silent, and the janitor forgets them after an hour", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.silent("killed", 1, 59*time.Minute, `[{"consumer":"billing","queue":true}]`)
		b.silent("gone", 1, 61*time.Minute, `[]`)
		b.silent("clock set back", 1, -10*time.Minute, `<script>`)
		for token := range 5 {
			b.silent("hot \x00<i>\xff", token+1, 30*time.Second, `[{"consumer":"a\u0000b","epoch":-1}]`)
		}
		assert.Len(t, b.present("gone"), 1)
		rig.Purge(t, b.store)
		assert.Empty(t, b.present("gone"))
		killed := b.present("killed")
		require.Len(t, killed, 1)
		assert.Equal(t, []any{false, 2, "billing (queue)"}, []any{killed[0].Alive, killed[0].More, killed[0].Serves[0].String()})
		back := b.present("clock set back")
		require.Len(t, back, 1)
		assert.Equal(t, []any{false, 3, 0}, []any{back[0].Alive, back[0].More, len(back[0].Serves)})
		assert.Len(t, b.present("hot \x00<i>\xff"), 5)
		assert.Empty(t, b.present("hot"))

		var names []string
		for after := ""; ; {
			page, err := admin.New(b.store).Processes(t.Context(), "", after, 2)
			require.NoError(t, err)
			for _, p := range page {
				names = append(names, p.Name)
				after = p.Cursor
			}
			if len(page) < 2 {
				break
			}
		}
		assert.Equal(t, append(append([]string{"clock set back"}, slices.Repeat([]string{"hot \x00<i>\xff"}, 5)...), "killed"), names)
		elsewhere, err := admin.New(b.newStore(b.db.DB, inbox.Config{Namespace: "other"})).Processes(t.Context(), "", "", 10)
		require.NoError(t, err)
		assert.Empty(t, elsewhere)
		for _, cursor := range []string{"=", "AAAA"} {
			_, err := admin.New(b.store).Processes(t.Context(), "", cursor, 10)
			require.ErrorContains(t, err, "the cursor is not one of a process")
		}
	})},
	{Name: "a list that cannot be written", Why: "no delivery fails for it, one line says so, and it is made up for", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		told := func() int {
			return strings.Count(strings.Join(b.events.Logs(), "\n"), "the list of processes could not be written")
		}
		store := b.worker(inbox.Config{Process: strings.Repeat("\xff", 255), Namespace: "\x00", Version: strings.Repeat("v", 255)})
		for i := range 1500 {
			rig.Queue(t, store, inbox.QueueConfig{Consumer: fmt.Sprint("consumer ", i)})
		}
		b.exec(`ALTER TABLE millrace_processes RENAME TO millrace_away`)
		stop := rig.Work(t, store)
		rig.Eventually(t, "it tried", func() bool { return told() > 0 })
		for n := 1; n <= 2; n++ { // each time the activity is written, the list is tried
			must(t, b.inbox(effect, on(store)), newMessage("x"))
			rig.Eventually(t, "it goes on", func() bool { return b.activity(store)["billing0"].Completed == int64(n) })
		}
		b.exec(`ALTER TABLE millrace_away RENAME TO millrace_processes`)
		var listed []admin.Process
		rig.Eventually(t, "it is listed", func() (found bool) {
			var err error
			listed, err = admin.New(store).Processes(t.Context(), "", "", 10)
			require.NoError(t, err)
			return len(listed) == 1
		})
		assert.Equal(t, 1, told())
		assert.Equal(t, 1501, len(listed[0].Serves)+listed[0].More)
		assert.Positive(t, listed[0].More)
		assert.Greater(t, len(listed[0].Serves), 100)

		stop()

		rig.Eventually(t, "a service ends without its row", func() bool {
			b.exec(`DELETE FROM millrace_processes`)
			stop := rig.Work(t, b.worker(inbox.Config{Process: "web-1"}))
			rig.Eventually(t, "it is listed", func() bool { return len(b.present("web-1")) == 1 })
			if b.db.Dialect != "sqlite" { // has one writer
				locked, err := b.db.Beginx()
				require.NoError(t, err)
				defer func() { assert.NoError(t, locked.Rollback()) }()
				_, err = locked.Exec(`UPDATE millrace_processes SET pid = pid + 1`)
				require.NoError(t, err)
			}
			began := time.Now()
			stop()
			return time.Since(began) < 4*time.Second
		})
	})},
}

// leaves expects that a store that ends in this way is listed no longer. On a busy machine a store has no time for that.
func (b *bed) leaves(name string, end func(store *inbox.Store, stop func())) {
	b.Helper()
	rig.Eventually(b, name+", it is not listed", func() bool {
		b.exec(`DELETE FROM millrace_processes`)
		store := b.worker(inbox.Config{Process: name})
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		ended := rig.Go(func() error { return store.Run(ctx) })
		rig.Eventually(b, "it is listed", func() bool { return len(b.present(name)) == 1 })
		end(store, cancel)
		require.NoError(b, <-ended)
		return len(b.present("")) == 0
	})
}
