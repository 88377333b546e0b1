package gate_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestConformance(t *testing.T) {
	testdb.Conformance(t, slices.Concat(tableBodies, gapBodies, forgetBodies, carriedBodies))
}

// snapshot is a change with which an aggregate starts, as starts says.
func snapshot(aggregate string, version int64) *message.Message {
	msg := change(aggregate, version)
	msg.Metadata.Set("snapshot", "yes")
	return msg
}

func starts(msg *message.Message) bool { return msg.Metadata.Get("snapshot") != "" }

// tableBodies: what becomes of a message by how its version relates to its aggregate's.
var tableBodies = []testdb.Body{
	{Name: "in order", Why: "current + 1: the handler runs, the version advances", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		for v := range int64(5) {
			must(t, h, change("a", v+1))
		}
		assert.Equal(t, upTo(5), b.applied("a"))
		assert.Equal(t, int64(5), b.version("a"))
	})},
	{Name: "stale", Why: "below the current version: acked, the handler does not run", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		must(t, h, change("a", 1), change("a", 2), change("a", 3), change("a", 2), change("a", 1))
		assert.Equal(t, upTo(3), b.applied("a"))
		assert.Equal(t, 2, b.events.Count("stale"))
		assert.Equal(t, 3, b.count(`SELECT COUNT(*) FROM millrace_claims`), "a stale one leaves nothing")
	})},
	{Name: "a copy", Why: "the message's own id is known before its version is looked at", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		first := change("a", 1)
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), again(first), again(first))
		must(t, b.gated(b.process(), millrace.VersionGate{}, handler), again(first))
		assert.Equal(t, upTo(1), b.applied("a"))
		assert.Equal(t, 2, b.events.Count("duplicate"))
	})},
	{Name: "the same version from another message", Why: "equal version, other id: a collision, parked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		other := change("a", 1)
		must(t, h, change("a", 1), again(other), again(other))
		assert.Equal(t, upTo(1), b.applied("a"))
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1, "once, however often it comes")
		assert.Equal(t, other.UUID, parked[0].UUID)
		assert.Equal(t, "a", parked[0].Aggregate)
		assert.Contains(t, parked[0].Reason, `version 1 of aggregate "a" was applied by another message`)

		must(t, b.gated(b.process(), millrace.VersionGate{OnCollision: inbox.VersionDrop}, handler), change("a", 1))
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Equal(t, 1, b.events.Count("stale"))
	})},
	{Name: "before the beginning", Why: "below the first seen: parked by default", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		gate := millrace.VersionGate{First: inbox.FirstSeen}
		h := b.gated(b.store, gate, handler)
		must(t, h, change("a", 7), change("a", 8), change("a", 5))
		assert.Equal(t, []int64{7, 8}, b.applied("a"))
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Contains(t, b.events.Last("parked").Err.Error(), "before the beginning")

		gate.OnBeforeFirst = inbox.VersionDrop
		must(t, b.gated(b.process(), gate, handler), change("a", 6))
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Equal(t, 1, b.events.Count("stale"))

		must(t, h, change("b", 0), change("c", 1))
		assert.Equal(t, []int64{0}, b.applied("b"))
		must(t, b.gated(b.process(), millrace.VersionGate{}, handler), change("d", 0))
		assert.Empty(t, b.applied("d"), "versions begin at 1")
		must(t, b.gated(b.process(), millrace.VersionGate{First: inbox.FirstIsZero}, handler), change("d2", 0), change("d2", 1))
		assert.Equal(t, []int64{0, 1}, b.applied("d2"))
	})},
	{Name: "the first that is seen fails", Why: "its aggregate begins with it all the same, and its successor waits", Run: testdb.With(newBed, firstSeenFails)},
	{Name: "before the beginning, in each process", Why: "what a process remembers of an aggregate changes no answer", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		gate := millrace.VersionGate{Starts: starts}
		h := b.gated(b.store, gate, handler)
		must(t, h, snapshot("a", 10), change("a", 11), change("a", 3), change("a", 10))
		must(t, b.gated(b.process(), gate, handler), change("a", 4))
		assert.Equal(t, []int64{10, 11}, b.applied("a"))
		assert.Equal(t, 2, b.open(admin.Parked), "3 and 4 are before the beginning")
		assert.Equal(t, 1, b.events.Count("stale"), "the other 10")
	})},
	{Name: "latest only", Why: "every newer version is accepted", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapLatest}, handler)
		must(t, h, change("a", 5), change("a", 3), change("a", 9), change("a", 9), change("a", 0))
		assert.Equal(t, []int64{5, 9}, b.applied("a"))
		assert.Equal(t, 2, b.events.Count("stale"))
		assert.Equal(t, 1, b.open(admin.Parked), "the other version 9")
		assert.Equal(t, 1, b.events.Count("gap"), "9 came without 6; with which version an aggregate begins is nobody's gap")
		assert.ErrorContains(t, b.events.Last("gap").Err, `version 9 of aggregate "a" came before version 6`)
		must(t, b.gated(b.process(), millrace.VersionGate{OnGap: inbox.GapLatest}, handler), change("a", 10), change("a", 12))
		must(t, h, change("a", 13))
		assert.Equal(t, 2, b.events.Count("gap"), "12: a process sees what another one applied")
	})},
	{Name: "latest only, where messages are held", Why: "they wait for nobody any more", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		first := b.process()
		b.queued(first)
		must(t, b.gated(first, millrace.VersionGate{}, handler),
			change("a", 1), change("a", 3), change("a", 4), change("a", 9), change("b", 1), change("b", 3))
		require.Equal(t, 4, b.open(admin.Held))

		queue := rig.Queue(b, b.store, inbox.QueueConfig{Consumer: consumer})
		h := b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapLatest}, handler)
		must(t, h, change("a", 5))
		assert.Equal(t, 1, b.open(admin.Held), "that of the other aggregate")
		for _, l := range rig.Take(b, queue, 3) {
			msg, err := l.Message(t.Context())
			require.NoError(t, err)
			must(t, h, msg)
		}
		assert.Equal(t, []int64{1, 5, 9}, b.applied("a"))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages`))
		assert.Zero(t, b.open(admin.Parked))

		must(t, h, change("b", 4))
		rig.Take(b, queue, 1)
		assert.Zero(t, b.open(admin.Held), "3 is below what was applied")
	})},
	{Name: "a snapshot with latest only", Why: "it lacks nothing that is older", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapLatest, Starts: starts}, handler)
		must(t, h, change("a", 1), snapshot("a", 9), change("a", 10))
		assert.Equal(t, []int64{1, 9, 10}, b.applied("a"))
		assert.Zero(t, b.events.Count("gap"))
	})},
	{Name: "a handler that fails", Why: "the version advances with the effect or not at all", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		failing := true
		h := b.gated(b.store, millrace.VersionGate{}, func(msg *message.Message) ([]*message.Message, error) {
			if err := apply(msg); err != nil || failing {
				return nil, assert.AnError
			}
			return nil, nil
		})
		first := change("a", 1)
		rig.MustFail(t, h, again(first), assert.AnError)
		_, err := b.store.Version(t.Context(), inbox.Aggregate{Consumer: consumer, ID: "a"})
		require.ErrorIs(t, err, inbox.ErrNotFound)
		failing = false
		must(t, h, again(first))
		assert.Equal(t, upTo(1), b.applied("a"))
	})},
	{Name: "versions that are none", Why: "a clear reason that names what is wrong, and nothing lost", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		kept := 0
		keeps := func(msg *message.Message, part string) {
			t.Helper()
			must(t, h, msg)
			kept++
			found := rig.Find(t, b.store, admin.Filter{Status: admin.FailedTerminal})
			require.Len(t, found, kept)
			assert.Equal(t, msg.UUID, found[kept-1].UUID)
			assert.Contains(t, found[kept-1].Reason, part)
			assert.Equal(t, inbox.ReasonVersion, b.events.Last("parked").Reason)
		}
		for text, part := range map[string]string{
			"":                    "but no",
			"-1":                  "negative",
			"seven":               "not a whole number",
			"1.5":                 "not a whole number",
			"9223372036854775808": "does not fit",
		} {
			msg := change("a", 1)
			msg.Metadata.Set(inbox.VersionField, text)
			keeps(msg, part)
		}
		keeps(message.NewMessage("n", nil), inbox.ErrNoVersion.Error())
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM applied`))

		must(t, b.gated(b.process(), millrace.VersionGate{Optional: true}, handler), message.NewMessage("optional", nil))
		assert.Equal(t, []int64{-1}, b.applied(""))
	})},
	{Name: "a Version that asks what is out of reach", Why: "the message is not to blame: it is tried again, and handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, unreachable := range map[string]error{
			"refused": &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "slow": context.DeadlineExceeded, "told": inbox.ErrUnavailable,
		} {
			var calls atomic.Int64
			gate := millrace.VersionGate{Version: func(msg *message.Message) ([]inbox.Version, error) {
				if calls.Add(1) <= 2 {
					return nil, fmt.Errorf("look its version up: %w", unreachable)
				}
				return inbox.VersionFromMetadata()(msg)
			}}
			msg := change("plain "+name, 1)
			h := b.gated(b.store, gate, handler)
			for range 2 {
				_, err := h(again(msg))
				require.ErrorIs(t, err, unreachable)
				assert.False(t, inbox.IsTerminal(err))
			}
			must(t, h, again(msg))
			assert.Equal(t, upTo(1), b.applied("plain "+name))
		}
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_messages`))
		assert.Zero(t, b.events.Count("outage"), "others use the database meanwhile")
	})},
	{Name: "a Version that asks what is out of reach, behind Durable", Why: "the queue tries the message again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var calls atomic.Int64
		s := b.service(b.store, millrace.VersionGate{Version: func(msg *message.Message) ([]inbox.Version, error) {
			if calls.Add(1) <= 2 {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return inbox.VersionFromMetadata()(msg)
		}}, handler)
		s.publish(change("a", 1))
		rig.Eventually(t, "it is handled", func() bool { return len(b.applied("a")) == 1 })
		assert.EqualValues(t, 3, calls.Load())
		assert.Zero(t, b.events.Count("parked"))
	})},
	{Name: "the greatest version", Why: "nothing overflows", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		h := b.gated(b.store, millrace.VersionGate{First: inbox.FirstSeen}, handler)
		must(t, h, change("a", math.MaxInt64-1), change("a", math.MaxInt64))
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("b", math.MaxInt64))
		assert.Equal(t, []int64{math.MaxInt64 - 1, math.MaxInt64}, b.applied("a"))
		assert.Equal(t, 1, b.open(admin.Held))
		must(t, b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapLatest}, handler), change("c", math.MaxInt64), change("c", 5))
		assert.Equal(t, 1, b.events.Count("gap"), "that of b: 5 is stale")
	})},
	{Name: "an aggregate's id of any bytes", Why: "ids are compared byte by byte, whatever their length", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		long := make([]byte, 300)
		h := b.gated(b.store, millrace.VersionGate{}, func(*message.Message) ([]*message.Message, error) { return nil, nil })
		ids := []string{"a", "A", "a ", "a\x00", "\xff\xfe", string(long), string(long) + "x", "\u00e4", "a\u0308"}
		for _, id := range ids {
			must(t, h, change(id, 1))
		}
		assert.Equal(t, len(ids), b.count(`SELECT COUNT(*) FROM millrace_versions WHERE version = 1`))
		for _, id := range ids {
			assert.Equal(t, int64(1), b.version(id))
		}
	})},
	{Name: "two consumers of one aggregate", Why: "each has its own version", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		other := millrace.Inbox{Store: b.store, Consumer: "other"}.Middleware(millrace.VersionGate{}.Middleware(handler))
		msg := change("a", 1)
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), again(msg))
		must(t, other, again(msg))
		assert.Equal(t, []int64{1, 1}, b.applied("a"))
	})},
	{Name: "alone", Why: "without Inbox the gate has a transaction of its own", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := millrace.VersionGate{Store: b.store, Consumer: consumer}.Middleware(handler)
		must(t, h, change("a", 1), change("a", 1), change("a", 2))
		assert.Equal(t, upTo(2), b.applied("a"))
		rig.MustFail(t, millrace.VersionGate{}.Middleware(handler), change("a", 3), "put it inside middleware.Inbox, or give it a Store")
		rig.MustFail(t, millrace.VersionGate{OnGap: 9, MaxHeld: -1}.Middleware(handler), change("a", 3), "OnGap 9", "MaxHeld -1")
	})},
	{Name: "wrong settings", Why: "they are named, and the message goes back after a pause, in which it has no connection", Run: testdb.With(newBed, wrongSettings)},
	{Name: "a failed statement before and behind the gate", Why: "who hid its error is told so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect != "postgres" { // the others go on after a statement that failed
			return
		}
		b.queued(b.store)
		hides := func(msg *message.Message) {
			_ = rig.Exec(msg.Context(), `SELECT * FROM nowhere`)
		}
		gate := millrace.VersionGate{}.Middleware(handler)
		for _, between := range []message.HandlerFunc{
			func(msg *message.Message) ([]*message.Message, error) { hides(msg); return gate(msg) },
			func(msg *message.Message) ([]*message.Message, error) { defer hides(msg); return gate(msg) },
		} {
			rig.MustFail(t, millrace.Inbox{Store: b.store, Consumer: consumer}.Middleware(between), change("a", 2), "set a SAVEPOINT before a statement that may fail")
			assert.Equal(t, inbox.ReasonHidden, b.events.Last("failed").Reason)
		}
		assert.Zero(t, b.open(admin.Held))
	})},
	{Name: "skipped by Inbox", Why: "then the gate is not there either", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		ran := 0
		h := millrace.Inbox{Store: b.store, Consumer: consumer, Skip: func(*message.Message) bool { return true }}.Middleware(
			millrace.VersionGate{}.Middleware(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil }))
		must(t, h, change("a", 7))
		assert.Equal(t, 1, ran)
	})},
	{Name: "a version that will never come", Why: "an operator says so, and what waits is released", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.service(b.store, millrace.VersionGate{}, handler)
		s.publish(change("a", 3), change("a", 4), change("a", 1))
		rig.Eventually(b, "one is applied, two are held", func() bool { return len(b.applied("a")) == 1 && b.open(admin.Held) == 2 })
		a := inbox.Aggregate{Consumer: consumer, ID: "a"}
		require.Error(t, admin.New(b.store).SetVersion(t.Context(), a, 2, admin.Operator{}))
		require.NoError(t, admin.New(b.store).SetVersion(t.Context(), a, 2, admin.Operator{Name: "ada", Reason: "lost"}))
		rig.Eventually(b, "they are applied", func() bool { return len(b.applied("a")) == 3 })
		assert.Equal(t, []int64{1, 3, 4}, b.applied("a"))
		must(t, b.gated(b.process(), millrace.VersionGate{}, handler), change("a", 2))
		assert.Equal(t, 1, b.events.Count("stale"))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_audit`))
	})},
	{Name: "a snapshot", Why: "what Starts an aggregate may follow any older version", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		gate := millrace.VersionGate{Starts: starts}
		h := b.gated(b.store, gate, handler)
		must(t, h, change("a", 1), change("a", 5), change("a", 10), snapshot("a", 9))
		assert.Equal(t, []int64{1, 9}, b.applied("a"))
		assert.Equal(t, 2, b.open(admin.Received), "the one it passed, and its successor")
		must(t, h, snapshot("b", 4), change("b", 5))
		assert.Equal(t, []int64{4, 5}, b.applied("b"))
	})},
	{Name: "a snapshot above all that is held", Why: "what it passed is released", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		h := b.gated(b.store, millrace.VersionGate{Starts: starts}, handler)
		must(t, h, change("a", 1), change("a", 5), snapshot("a", 9), change("a", 10))
		assert.Equal(t, []int64{1, 9, 10}, b.applied("a"))
		assert.Equal(t, 1, b.open(admin.Received))
	})},
	{Name: "two aggregates in one message", Why: "it runs when it is next for both", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		both := func(msg *message.Message) ([]inbox.Version, error) {
			one, err := inbox.VersionFromMetadata()(msg)
			if err == nil && msg.Metadata.Get("other") != "" {
				one = append(one, inbox.Version{Aggregate: msg.Metadata.Get("other"), Number: 2})
			}
			return one, err
		}
		h := b.gated(b.store, millrace.VersionGate{Version: both}, handler)
		transfer := change("b", 2)
		transfer.Metadata.Set("other", "a")
		must(t, h, change("b", 1), again(transfer))
		assert.Equal(t, 1, b.open(admin.Held), "a is not at 1")
		assert.Equal(t, int64(1), b.version("b"), "b does not advance while a does not")
		must(t, h, change("a", 1))
		assert.Equal(t, 1, b.open(admin.Received))

		mixed := change("a", 1)
		mixed.Metadata.Set("other", "c")
		must(t, h, change("c", 1), mixed)
		assert.Equal(t, 1, b.open(admin.Parked), "a version of another message beside one that is next")
	})},
	{Name: "a rebuild", Why: "Forget has everything handled again; a new epoch begins beside it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		stream := []*message.Message{change("a", 1), change("a", 2), change("b", 1), change("a", 4)}
		for _, msg := range stream {
			must(t, h, again(msg))
		}
		b.db.Do(t, `DELETE FROM applied`)
		require.NoError(t, admin.New(b.store).Forget(t.Context(), consumer, 0, admin.Operator{Name: "ada", Reason: "rebuild"}))
		for _, msg := range stream {
			must(t, h, again(msg))
		}
		assert.Equal(t, upTo(2), b.applied("a"))
		assert.Equal(t, upTo(1), b.applied("b"))

		next := millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{Epoch: 1}}.Middleware(millrace.VersionGate{}.Middleware(handler))
		for _, msg := range stream[:3] {
			must(t, next, again(msg))
		}
		assert.Equal(t, []int64{1, 2, 1, 2}, b.applied("a"))
	})},
}
