package tests_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
)

func stepTooLarge(t *testing.T, b *bed) {
	calls := 0
	h, _ := stepping(inbox.Step{Name: "mail", Do: func(context.Context, string) ([]byte, error) {
		calls++
		return make([]byte, inbox.MaxStepResult+1), nil
	}}, fine)
	msg := newMessage("x")
	for range 2 {
		err := rig.Failure(t, b.leased(h), again(msg), "it has 65537 bytes, more than 65536")
		assert.True(t, inbox.IsTerminal(err))
	}
	assert.Equal(t, 1, calls)
}

func stepSealed(t *testing.T, b *bed) {
	codec := &flippingCodec{}
	store := b.newStore(b.db.DB, inbox.Config{Payloads: codec})
	h, results := stepping(inbox.Step{Name: "mail", Do: answers("a secret")}, fine)
	msg := newMessage("x")
	msg.Metadata.Set("person", "ada")
	for epoch := range 2 {
		must(t, b.leased(h, onStore(store), func(d *millrace.Deduplicate) { d.Epoch = epoch }), again(msg))
	}
	assert.Equal(t, []string{"a secret", "a secret"}, *results)
	var stored []byte
	require.NoError(t, b.db.GetContext(t.Context(), &stored, `SELECT result FROM millrace_steps`))
	assert.NotContains(t, string(stored), "secret")
	story := rig.Story(t, store, msg.UUID)
	assert.Equal(t, "a secret", string(story.Steps[0].Result))
	for _, info := range codec.infos {
		assert.Equal(t, []string{"billing", "mail", msg.UUID, "ada"}, []string{info.Consumer, info.Topic, info.UUID, info.Metadata.Get("person")})
	}

	codec.fails = inbox.ErrErased
	story = rig.Story(t, store, msg.UUID)
	assert.Nil(t, story.Steps[0].Result)
	assert.Contains(t, story.Steps[0].Problem, "erased")
	err := rig.Failure(t, b.leased(h, onStore(store), func(d *millrace.Deduplicate) { d.Epoch = 3 }), again(msg), inbox.ErrErased)
	assert.True(t, inbox.IsTerminal(err))

	other := newMessage("y") // whose result cannot be sealed: it is done all the same
	for epoch := range 2 {
		rig.MustFail(t, b.leased(h, onStore(store), func(d *millrace.Deduplicate) { d.Epoch = epoch }), again(other), "it is done, but its result was not kept")
	}
}

// flippingCodec keeps nothing secret, but changes every byte.
type flippingCodec struct {
	infos []payload.Info
	fails error
}

func (c *flippingCodec) Seal(_ context.Context, info payload.Info, payload []byte) ([]byte, error) {
	c.infos = append(c.infos, info)
	flipped := make([]byte, len(payload))
	for i := range payload {
		flipped[i] = ^payload[i]
	}
	return flipped, c.fails
}

func (c *flippingCodec) Open(ctx context.Context, info payload.Info, sealed []byte) ([]byte, error) {
	return c.Seal(ctx, info, sealed)
}

func stepRefusedAndLost(t *testing.T, b *bed) {
	for _, answered := range []bool{false, true} { // whether the COMMIT of the record goes through
		pool := faults.Open(t, b.db)
		p := provider{fails: inbox.NotDone(errBoom)}
		h, _ := stepping(inbox.Step{Name: "mail", Do: p.call}, fine)
		leased := b.leased(h, onStore(b.newStore(pool.DB, inbox.Config{})))
		ending, lost := false, 0
		lose := func() error {
			if !ending || lost > 0 {
				return nil
			}
			lost++
			return faults.ErrLost
		}
		plan := faults.Plan{Before: faults.At("UPDATE millrace_steps", func() error {
			ending = true
			if answered {
				return nil
			}
			return lose()
		})}
		if answered {
			plan.After = faults.At(faults.Commit, lose)
		}
		pool.Set(plan)
		msg := newMessage("x")
		err := rig.Failure(t, leased, again(msg), errBoom)
		require.NotErrorIs(t, err, inbox.ErrLeaseLost)
		pool.Set(faults.Plan{})
		assert.Equal(t, 1, lost)
		story := rig.Story(t, b.store, msg.UUID)
		assert.Equal(t, admin.StepNotDone, story.Steps[0].State)
		p.fails = nil
		must(t, leased, again(msg))
		assert.Len(t, p.ids, 2)
	}
}

func stepDecidedIsKept(t *testing.T, b *bed) {
	const day = 24 * time.Hour
	step := inbox.Step{Name: "mail", Store: b.store, Do: func(context.Context, string) ([]byte, error) { return nil, errBoom }}
	leased, _ := stepping(step, fine)
	claimed := func(consumer string, retention time.Duration) message.HandlerFunc {
		return b.inbox(effect, func(i *millrace.Inbox) {
			i.Consumer, i.Retention = consumer, retention
			i.Before = func(msg *message.Message) error { _, err := step.Run(msg.Context()); return err }
		})
	}
	month := b.leased(leased, func(d *millrace.Deduplicate) { d.Consumer, d.Retention = "leased", 30*day })
	elsewhere := b.leased(leased, func(d *millrace.Deduplicate) {
		d.Consumer, d.Claims = "elsewhere", inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	})
	kept := func() time.Duration {
		return time.Duration(b.count(`SELECT until - ended_at FROM millrace_steps`)) * time.Microsecond
	}
	for name, c := range map[string]struct {
		handler message.HandlerFunc
		decided time.Duration
		used    time.Duration // after the next attempt
	}{
		"leased":    {month, 7*day + 21*time.Hour, 30*day + 90*time.Hour},
		"elsewhere": {elsewhere, 7*day + 21*time.Hour, 7*day + 21*time.Hour},
		"claimed":   {claimed("claimed", 16*day), 18 * day, 18 * day},
		"an hour":   {claimed("an hour", time.Hour), 3 * time.Hour, 3 * time.Hour},
		"for ever":  {claimed("for ever", inbox.Forever), 36500 * day, 36500 * day},
	} {
		msg := newMessage("x")
		rig.MustFail(t, c.handler, again(msg), errBoom)
		by := admin.Operator{Name: "ada", Reason: "asked the provider"}
		require.NoError(t, admin.New(b.store).DecideStep(t.Context(), b.lastInDoubt().ID, admin.StepWasDone, by), name)
		assert.InDelta(t, c.decided, kept(), float64(time.Minute), name)
		must(t, c.handler, again(msg))
		assert.InDelta(t, c.used, kept(), float64(time.Hour), name)
		b.exec(`DELETE FROM millrace_steps`)
	}
}

func stepDecisionIsAudited(t *testing.T, b *bed) {
	h, _ := stepping(inbox.Step{Name: "mail", Store: b.store, Do: func(context.Context, string) ([]byte, error) { return nil, errBoom }}, fine)
	by, ops := admin.Operator{Name: "ada", Reason: "asked the provider"}, admin.New(b.store)
	others := admin.New(b.newStore(b.db.DB, inbox.Config{Namespace: "another"}))
	for name, claims := range map[string]*inbox.Leases{
		"leased": b.store.Leases(), "elsewhere": inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{}),
	} {
		msg := newMessage("x")
		leased := b.leased(h, func(d *millrace.Deduplicate) { d.Consumer, d.Claims, d.Epoch = name, claims, 3 })
		rig.MustFail(t, leased, again(msg), errBoom)
		require.NoError(t, ops.DecideStep(t.Context(), b.lastInDoubt().ID, admin.StepWasNotDone, by), name)
		epoch := 3
		for _, f := range []admin.ConsumerFilter{{Consumer: name}, {Consumer: name, Epoch: &epoch}, {}} {
			entries, err := ops.Audit(t.Context(), f, 0, 10)
			require.NoError(t, err)
			require.NotEmpty(t, entries, name)
			e := entries[0]
			assert.Equal(t, []any{name, epoch, msg.UUID, "decide step"}, []any{e.Consumer, e.Epoch, e.MessageID, e.Action})
			same, err := ops.AuditEntry(t.Context(), e.ID)
			require.NoError(t, err)
			assert.Equal(t, e, same)
		}
		theirs, err := others.Audit(t.Context(), admin.ConsumerFilter{}, 0, 10)
		require.NoError(t, err)
		assert.Empty(t, theirs, "they are of another namespace")
		assert.Len(t, rig.Story(t, b.store, msg.UUID).Audit, 1, name)
		rig.MustFail(t, leased, again(msg), errBoom)
	}
	moved := func(key inbox.Key) message.HandlerFunc {
		return b.leased(h, onStore(b.process()), func(d *millrace.Deduplicate) { d.Consumer, d.Epoch, d.Key = "elsewhere", 3, key })
	}
	rig.MustFail(t, moved(inbox.ByPayload()), newMessage("x"), errBoom) // the operator's call knew no key
	rig.MustFail(t, moved(inbox.ByUUID()), newMessage("x"), inbox.ErrKeyChanged)
	n, err := ops.PruneAudit(t.Context(), admin.ConsumerFilter{}, time.Now().Add(time.Hour), by)
	require.NoError(t, err)
	assert.Equal(t, 2, n)
}

func stepsPurged(t *testing.T, b *bed) {
	var p provider
	step := inbox.Step{Name: "mail", Do: p.call}
	h, _ := stepping(step, fine)
	refused, _ := stepping(inbox.Step{Name: "mail", Do: func(context.Context, string) ([]byte, error) {
		return nil, inbox.NotDone(errBoom)
	}}, fine)
	done, open := newMessage("x"), newMessage("y")
	must(t, b.leased(h), again(done))
	rig.MustFail(t, b.leased(refused), newMessage("z"), errBoom)
	p.ids = nil
	doubt := b.inDoubt(&p)
	// One of a message that is parked.
	rig.MustFail(t, b.inbox(effect, func(i *millrace.Inbox) {
		i.RecordFailures = true
		i.Before = func(msg *message.Message) error {
			_, err := step.Run(msg.Context())
			return errors.Join(err, errBoom)
		}
	}), again(open), errBoom)
	steps := func() (all []string) {
		for _, msg := range []*message.Message{done, open, doubt} {
			story := rig.Story(t, b.store, msg.UUID)
			for range story.Steps {
				all = append(all, string(msg.Payload))
			}
		}
		return all
	}
	rig.Purge(t, b.store)
	assert.Equal(t, []string{"x", "y", "x"}, steps(), "nothing is old")
	least := (7*24 + 1) * int64(time.Hour/time.Microsecond)
	assert.Equal(t, 3, b.count(`SELECT COUNT(*) FROM millrace_steps WHERE state <> 1 AND until - ended_at > ?`, least))

	b.exec(`UPDATE millrace_steps SET until = 1`)
	rig.Purge(t, b.store)
	assert.Equal(t, []string{"y", "x"}, steps(), "what was done is gone, and what was refused")
	assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_steps`))

	must(t, b.inbox(effect, func(i *millrace.Inbox) {
		i.Before = func(msg *message.Message) error {
			_, err := step.Run(msg.Context())
			return err
		}
	}), again(open))
	rig.Purge(t, b.store)
	assert.Equal(t, []string{"y", "x"}, steps(), "it was used, so it is remembered for as long as its claim")
}

func stepReplayed(t *testing.T, b *bed) {
	var p provider
	step := inbox.Step{Name: "mail", Do: p.call}
	var results []string
	wrap := func(rule inbox.ReplayRule, epoch int) message.HandlerFunc {
		return b.inbox(effect, onReplay(rule), func(i *millrace.Inbox) {
			i.Epoch = epoch
			i.Before = func(msg *message.Message) error {
				result, err := step.Run(msg.Context())
				results = append(results, string(result))
				return err
			}
		})
	}
	msg := newMessage("x")
	must(t, wrap(inbox.ReplayAllow, 0), again(msg))
	must(t, wrap(inbox.ReplayAllow, 1), replay(msg, "r"))
	must(t, wrap(inbox.ReplaySuppress, 2), replay(msg, "r"))
	assert.Len(t, p.ids, 1, "what was done is not done again in a new epoch")
	assert.Equal(t, []string{"receipt", "receipt", "receipt"}, results)
	assert.Equal(t, "ran", b.events.Last("replayed").Reason)

	must(t, wrap(inbox.ReplayRefuse, 3), replay(msg, "r"))
	assert.Len(t, results, 3, "it is parked, so there is nothing to prepare")

	other := newMessage("y")
	must(t, wrap(inbox.ReplaySuppress, 4), replay(other, "r"))
	assert.Len(t, p.ids, 1)
	assert.Equal(t, "suppressed", b.events.Last("replayed").Reason)
	assert.Equal(t, 1, b.events.Last("replayed").Count)
	assert.Equal(t, 4, strings.Count(strings.Join(results, ","), ",")+1)
	assert.Equal(t, "", results[3])
}
