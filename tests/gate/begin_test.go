package gate_test

import (
	"fmt"
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

func TestAsideBegins(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, asideBodies)
}

// firstSeenFails delivers the second version of an aggregate between two runs of the one that the gate saw first.
func firstSeenFails(t *testing.T, b *bed) {
	b.queued(b.store)
	fresh := func() *inbox.Store { // another process, which remembers nothing
		store := b.process()
		b.queued(store)
		return store
	}
	failed := false
	once := func(msg *message.Message) ([]*message.Message, error) {
		if !failed {
			failed = true
			return nil, errFails
		}
		return handler(msg)
	}
	first := change("a", 4)
	rig.MustFail(t, b.gated(b.store, millrace.VersionGate{First: inbox.FirstSeen}, once), again(first), errFails)
	must(t, b.gated(fresh(), millrace.VersionGate{First: inbox.FirstSeen}, once), change("a", 5))
	assert.Equal(t, 1, b.open(admin.Held))
	must(t, b.gated(b.store, millrace.VersionGate{First: inbox.FirstSeen, OnBeforeFirst: inbox.VersionDrop}, once), change("a", 3), again(first))
	assert.Equal(t, []int64{4}, b.applied("a"))
	assert.Equal(t, 1, b.events.Count("stale"), "3 is before the beginning")

	failed = false
	both := millrace.VersionGate{First: inbox.FirstSeen, Version: func(msg *message.Message) ([]inbox.Version, error) {
		own, err := inbox.VersionFromMetadata()(msg)
		return append(own, inbox.Version{Aggregate: "of all", Number: 7}), err
	}}
	first = change("b", 0)
	rig.MustFail(t, b.gated(fresh(), both, once), again(first), errFails)
	must(t, b.gated(fresh(), millrace.VersionGate{First: inbox.FirstSeen}, once), change("b", 1), change("of all", 8))
	assert.Equal(t, 2, b.open(admin.Held), "both aggregates begin")
	must(t, b.gated(fresh(), both, once), again(first))
	assert.Equal(t, []int64{0}, b.applied("b"))
	assert.EqualValues(t, 7, b.version("of all"))
}

// inEpoch is a process of the consumer in an epoch, which begins aggregates where it sees them first.
func (b *bed) inEpoch(epoch int, gate millrace.VersionGate) *proc {
	b.Helper()
	gate.First = inbox.FirstSeen
	p := b.proc(consumer, gate)
	p.store = b.process()
	p.queue = rig.Queue(b, p.store, inbox.QueueConfig{Consumer: consumer, Epoch: epoch})
	p.handler = millrace.Inbox{Store: p.store, Consumer: consumer, Options: inbox.Options{Epoch: epoch, TwinWait: rig.Patience}}.Middleware(gate.Middleware(p.handle))
	return p
}

// handsOut is work for a queue that hands out what it has leased, as the gate must find it to hold it again.
func (p *proc) handsOut() int {
	p.Helper()
	leased, err := p.queue.HandOut(p.Context(), rig.Take(p, p.queue, 5)...)
	require.NoError(p, err)
	for _, l := range leased {
		msg, err := l.Message(p.Context())
		require.NoError(p, err)
		must(p.T, p.handler, msg)
		require.NoError(p, l.Finish(p.Context()))
	}
	return len(leased)
}

// putAside has p hold messages of versions 6 and 8, behind version 4.
func (p *proc) putAside() {
	p.Helper()
	for _, v := range []int64{4, 6, 8} {
		require.True(p, p.deliver(change("a", v)))
	}
	require.Equal(p, 2, p.open(admin.Held))
}

// awaits says that no held message began its aggregate.
func (b *bed) awaits() {
	b.Helper()
	assert.Equal(b, 2, b.open(admin.Held))
	assert.Equal(b, []int64{4}, b.applied("a"), "the handler ran for a message that was held")
	assert.Zero(b, b.count(`SELECT COUNT(*) FROM millrace_versions v JOIN millrace_consumers c ON c.id = v.consumer WHERE c.epoch = 1`))
}

// asideBodies: a message that was held in an epoch before, or before its aggregate was forgotten, begins none.
var asideBodies = []testdb.Body{
	{Name: "a new epoch", Why: "what is replayed begins it, and what was held follows",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.inEpoch(0, millrace.VersionGate{}).putAside()
			p := b.inEpoch(1, millrace.VersionGate{})
			require.Equal(t, 2, p.handsOut())
			b.awaits()
			for v := range int64(3) {
				require.True(t, p.deliver(change("a", v+3)))
			}
			require.Equal(t, 1, p.handsOut())
			require.True(t, p.deliver(change("a", 7)))
			require.Equal(t, 1, p.handsOut())
			assert.Equal(t, []int64{4, 3, 4, 5, 6, 7, 8}, b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "a consumer that forgets", Why: "as in a new epoch, also what was released in between",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			p := b.inEpoch(1, millrace.VersionGate{})
			p.putAside()
			require.NoError(t, admin.New(p.store).Forget(t.Context(), consumer, 1, admin.Operator{Name: "ann", Reason: "a rebuild"}))
			require.Equal(t, 2, p.handsOut())
			b.awaits()
			for v := range int64(5) {
				require.True(t, p.deliver(change("a", v+1)))
			}
			require.Equal(t, 1, p.handsOut())
			require.NoError(t, admin.New(p.store).Forget(t.Context(), consumer, 1, admin.Operator{Name: "ann", Reason: "a rebuild"}))
			require.Equal(t, 1, p.handsOut())
			for v := range int64(7) {
				require.True(t, p.deliver(change("a", v+1)))
			}
			require.Equal(t, 1, p.handsOut())
			assert.Equal(t, []int64{4, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8}, b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "a source that has nothing older", Why: "the aggregate begins with what was held right before",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.inEpoch(0, millrace.VersionGate{}).putAside()
			p := b.inEpoch(1, millrace.VersionGate{OnBeforeFirst: inbox.VersionDrop})
			require.Equal(t, 2, p.handsOut())
			b.awaits()
			require.True(t, p.deliver(change("a", 9)))
			assert.Equal(t, 2, p.handsOut(), "6, which is stale, and 8")
			assert.Equal(t, 1, p.handsOut())
			assert.Equal(t, []int64{4, 8, 9}, b.applied("a"))
			assert.Equal(t, 1, b.events.Count("stale"))
			b.nothingLeft()
		})},
	{Name: "a snapshot after what was held", Why: "nothing is applied before it",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.inEpoch(0, millrace.VersionGate{}).putAside()
			p := b.inEpoch(1, millrace.VersionGate{OnBeforeFirst: inbox.VersionDrop, Starts: func(msg *message.Message) bool {
				return msg.Metadata.Get("snapshot") != ""
			}})
			require.Equal(t, 2, p.handsOut())
			require.True(t, p.deliver(marked(change("a", 7), "snapshot")))
			assert.Equal(t, 2, p.handsOut())
			assert.Equal(t, []int64{4, 7, 8}, b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "an operator who says where it stands", Why: "what was held follows",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.inEpoch(0, millrace.VersionGate{}).putAside()
			p := b.inEpoch(1, millrace.VersionGate{})
			require.Equal(t, 2, p.handsOut())
			b.awaits()
			err := admin.New(p.store).SkipGap(t.Context(), inbox.Aggregate{Consumer: consumer, Epoch: 1, ID: "a"}, 1, 5, admin.Operator{Name: "ann", Reason: "a rebuild"})
			require.NoError(t, err)
			require.Equal(t, 1, p.handsOut())
			require.True(t, p.deliver(change("a", 7)))
			require.Equal(t, 1, p.handsOut())
			assert.Equal(t, []int64{4, 6, 7, 8}, b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "a source that begins while what was held comes anew", Why: "whoever is first, nothing is left behind",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			const aggregates = 12
			before, now := b.inEpoch(0, millrace.VersionGate{}), b.inEpoch(1, millrace.VersionGate{})
			source := b.inEpoch(1, millrace.VersionGate{})
			name := func(i int) string { return fmt.Sprint("a", i) }
			for i := range aggregates {
				for _, v := range []int64{4, 6, 8} {
					require.True(t, before.deliver(change(name(i), v)))
				}
			}
			b.db.Do(t, `DELETE FROM applied`)
			ended := rig.Go(func() error {
				for i := range aggregates {
					for _, v := range []int64{3, 4, 5, 7} {
						for msg := change(name(i), v); !source.deliver(msg); {
							if err := t.Context().Err(); err != nil {
								return err
							}
						}
					}
				}
				return nil
			})
			rig.Eventually(t, "all are applied", func() bool {
				for _, l := range rig.Take(t, now.queue, 5) {
					if _, err := now.queue.HandOut(t.Context(), l); err != nil {
						continue
					}
					msg, err := l.Message(t.Context())
					require.NoError(t, err)
					if _, err = now.handler(msg); err == nil {
						_ = l.Finish(t.Context())
					} else {
						_ = l.Fail(t.Context())
					}
				}
				return b.count(`SELECT COUNT(*) FROM applied`) == 6*aggregates
			})
			require.NoError(t, rig.Within(t, ended, "the source ends"))
			for i := range aggregates {
				assert.Equal(t, []int64{3, 4, 5, 6, 7, 8}, b.applied(name(i)))
			}
			b.nothingLeft()
		})},
}
