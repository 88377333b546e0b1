package tests_test

import (
	"slices"
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

func TestCheckComparesRetentionWithTheDeclaredWindow(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db = documented(t, db)
		store := migrate(t, db, inbox.Config{})
		consumer := func(s *inbox.Store, name string, epoch int, retention, window time.Duration) message.HandlerFunc {
			h, err := s.Handler(inbox.ConsumerConfig{Name: name, Options: inbox.Options{Epoch: epoch, Retention: retention, Window: window}}, effectless)
			require.NoError(t, err)
			return h
		}
		short := consumer(store, "short", 0, 3*time.Hour, 2*time.Hour)
		consumer(store, "enough", 0, 4*time.Hour, 2*time.Hour)
		consumer(store, "undeclared", 0, time.Hour, 0)
		consumer(store, "forever", 0, inbox.Forever, 1000*time.Hour)
		found := findings(t, store)
		require.Equal(t, []string{`warning consumer "short"`}, subjects(found))
		assert.Contains(t, found[0].Problem, "3h0m0s")
		assert.Contains(t, found[0].Problem, "2h0m0s")
		assert.Contains(t, found[0].Remedy, "4h0m0s")

		_, err := short(newMessage("x")) // now it is recorded, for another process to see
		require.NoError(t, err)
		other := check(t, db, inbox.Config{})
		require.Equal(t, []string{`warning consumer "short"`}, subjects(other))
		require.Empty(t, check(t, db, inbox.Config{Namespace: "another service"}))

		next := migrate(t, db, inbox.Config{})
		consumer(next, "short", 1, 4*time.Hour, 2*time.Hour)
		found = findings(t, next)
		require.Empty(t, found, "an epoch that is over does not count")
	})
}

// What the table has of a consumer is what the run before said: at a start the program counts.
func TestARetentionIsJudgedByTheProgram(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db = documented(t, db) // so that there is nothing else to say
		migrate(t, db, inbox.Config{})
		for _, run := range []struct {
			retention time.Duration
			verified  bool // at the start; else the first message tells
			warned    int
		}{{3 * time.Hour, true, 1}, {4 * time.Hour, true, 0}, {3 * time.Hour, false, 1}, {4 * time.Hour, false, 0}} {
			events := &rig.Events{}
			store := rig.NewStore(t, db.DB, inbox.Config{Logger: events})
			i := millrace.Inbox{Store: store, Options: inbox.Options{Retention: run.retention, Window: 2 * time.Hour}}
			plugin := store.Plugin()
			if run.verified {
				plugin = i.Plugin()
			}
			said := func() int {
				return len(slices.DeleteFunc(events.Logs(), func(text string) bool {
					return text != "inbox: messages can be redelivered after they are forgotten" &&
						text != "inbox: a setting of the database should be changed"
				}))
			}
			router, source := rig.NewRouter(t), rig.NewFeed()
			router.AddPlugin(plugin)
			router.AddMiddleware(i.Middleware)
			router.AddConsumerHandler("billing", "orders", source, func(*message.Message) error { return nil })
			rig.Run(t, router)
			if run.verified {
				assert.Equal(t, run.warned, said(), "%+v, before the first message", run)
			}
			msg := newMessage("x")
			source.Send(t, msg)
			require.True(t, rig.Answer(t, msg))
			assert.Equal(t, run.warned, said(), "%+v", run)
		}
	})
}
