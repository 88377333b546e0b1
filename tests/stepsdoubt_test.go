package tests_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// inDoubt has a step begun by a call that gave no answer, and returns its message.
func (b *bed) inDoubt(p *provider) *message.Message {
	b.Helper()
	h, _ := stepping(inbox.Step{Name: "mail", Do: p.call}, fine)
	msg := newMessage("x")
	p.fails = errBoom
	rig.MustFail(b, b.leased(h), again(msg), errBoom)
	p.fails = nil
	last := b.lastInDoubt()
	assert.Equal(b, []any{admin.StepInDoubt, "mail", msg.UUID, p.ids[0]}, []any{last.State, last.Name, last.MessageID, last.ID})
	assert.Contains(b, last.Problem, "boom")
	return msg
}

func stepUnverified(t *testing.T, b *bed) {
	var p provider
	msg := b.inDoubt(&p)
	h, _ := stepping(inbox.Step{Name: "mail", Do: p.call}, fine)
	for range 2 {
		err := rig.Failure(t, b.leased(h), again(msg), inbox.ErrInDoubt, p.ids[0], "an earlier attempt failed: boom")
		assert.False(t, inbox.IsTerminal(err))
	}
	assert.Len(t, p.ids, 1)
	assert.Zero(t, b.events.Count("double effect"))
	b.doubts(1)
}

// doubts expects that what is recorded of the step in doubt is what its one call failed with.
func (b *bed) doubts(attempts int) {
	b.Helper()
	last := b.lastInDoubt()
	assert.Equal(b, errBoom.Error(), last.Problem)
	assert.Equal(b, attempts, last.Attempts)
}

func (b *bed) inDoubtNow() []admin.StepRecord {
	b.Helper()
	list, err := admin.New(b.store).StepsInDoubt(b.Context(), 10)
	require.NoError(b, err)
	return list
}

func (b *bed) lastInDoubt() admin.StepRecord {
	b.Helper()
	list := b.inDoubtNow()
	require.NotEmpty(b, list)
	return list[len(list)-1]
}

func stepVerified(t *testing.T, b *bed) {
	var done bool
	var unknown error
	var asked []string
	var p provider
	verify := func(_ context.Context, id string) (bool, []byte, error) {
		asked = append(asked, id)
		return done, []byte("found"), unknown
	}
	h, results := stepping(inbox.Step{Name: "mail", Do: p.call, Verify: verify}, fine)
	fresh := newMessage("y")
	must(t, b.leased(h), fresh)
	assert.Empty(t, asked, "of what was not begun there is nothing to ask")
	p.ids = nil

	msg := b.inDoubt(&p)
	unknown = inbox.Terminal(errBoom)
	err := rig.Failure(t, b.leased(h), again(msg), inbox.ErrInDoubt, errBoom)
	assert.True(t, inbox.IsTerminal(err))
	for range 2 {
		unknown = inbox.NotDone(errBoom) // the question was refused, not the step
		rig.MustFail(t, b.leased(h), again(msg), inbox.ErrInDoubt)
		require.Len(t, p.ids, 1)
	}
	b.doubts(4) // it was taken, to be verified
	unknown, asked = nil, asked[:1]
	must(t, b.leased(h), again(msg))
	assert.Equal(t, []string{p.ids[0], p.ids[0]}, asked)
	assert.Len(t, p.ids, 2, "it was not done, so it is done now")
	assert.Equal(t, p.ids[0], p.ids[1])

	p.ids, asked, done = nil, nil, true
	msg = b.inDoubt(&p)
	must(t, b.leased(h), again(msg))
	assert.Len(t, p.ids, 1)
	assert.Equal(t, []string{"receipt", "receipt", "found"}, *results)
	story := rig.Story(t, b.store, msg.UUID)
	assert.True(t, story.Steps[0].Verified)
	assert.Equal(t, 2, story.Steps[0].Attempts)
	assert.Empty(t, b.inDoubtNow())
}

func stepIdempotent(t *testing.T, b *bed) {
	var p provider
	msg := b.inDoubt(&p)
	h, results := stepping(inbox.Step{Name: "mail", Do: p.call, Idempotent: true}, fine)
	must(t, b.leased(h), again(msg))
	assert.Equal(t, []string{p.ids[0], p.ids[0]}, p.ids)
	assert.Equal(t, []string{"receipt"}, *results)
}

func stepRefused(t *testing.T, b *bed) {
	p := provider{fails: inbox.NotDone(errBoom)}
	h, _ := stepping(inbox.Step{Name: "mail", Do: p.call}, fine)
	msg := newMessage("x")
	for range 2 {
		rig.MustFail(t, b.leased(h), again(msg), errBoom)
	}
	story := rig.Story(t, b.store, msg.UUID)
	assert.Equal(t, admin.StepNotDone, story.Steps[0].State)
	p.fails = nil
	must(t, b.leased(h), again(msg))
	assert.Equal(t, []string{p.ids[0], p.ids[0], p.ids[0]}, p.ids)
	require.NoError(t, inbox.NotDone(nil))
}

// stepNotCalled has attempts end between the record of the intent and the call.
func stepNotCalled(t *testing.T, b *bed) {
	for name, after := range map[string]func(cancel func()) error{
		"cancelled before the call":         func(cancel func()) error { cancel(); return nil },
		"the answer to its intent was lost": func(func()) error { return faults.ErrLost },
	} {
		t.Run(name, func(t *testing.T) {
			pool := faults.Open(t, b.db)
			var p provider
			step := inbox.Step{Name: "mail", Wait: 10 * time.Millisecond, Do: func(ctx context.Context, id string) ([]byte, error) {
				if err := ctx.Err(); err != nil { // as an HTTP client does
					return nil, err
				}
				return p.call(ctx, id)
			}}
			store := b.newStore(pool.DB, inbox.Config{})
			interrupted := func(msg *message.Message) message.HandlerFunc {
				h, _ := stepping(step, fine)
				leased := b.leased(h, onStore(store))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begun := false
				pool.Set(faults.Plan{
					Before: faults.At("INSERT INTO millrace_steps", func() error { begun = true; return nil }),
					After: faults.At(faults.Commit, func() error {
						if !begun {
							return nil
						}
						begun = false
						return after(cancel)
					}),
				})
				first, calls := again(msg), len(p.ids)
				first.SetContext(ctx)
				_, err := leased(first)
				require.Error(t, err)
				assert.NotErrorIs(t, err, inbox.ErrInDoubt, "the next attempt does it")
				require.Len(t, p.ids, calls)
				pool.Set(faults.Plan{})
				return leased
			}

			fresh := newMessage("x")
			next := interrupted(fresh)
			assert.Empty(t, b.inDoubtNow())
			must(t, next, again(fresh))
			assert.Len(t, p.ids, 1)

			p.ids = nil
			doubtful := b.inDoubt(&p)
			step.Idempotent = true
			next = interrupted(doubtful)
			b.doubts(2)
			must(t, next, again(doubtful))
			assert.Len(t, p.ids, 2)
		})
	}
}

func stepOfTheDead(t *testing.T, b *bed) {
	msg := newMessage("x")
	frozen, release := make(chan struct{}), make(chan struct{})
	dead, _ := stepping(inbox.Step{Name: "mail", Do: func(context.Context, string) ([]byte, error) {
		close(frozen)
		<-release
		return nil, errBoom
	}}, fine)
	ended := rig.Handle(b.leased(dead, onStore(b.process()), func(d *millrace.Deduplicate) { d.Consumer = "billing" }), again(msg))
	<-frozen
	var p provider
	h, _ := stepping(inbox.Step{Name: "mail", Do: p.call, Wait: 10 * time.Millisecond, Idempotent: true}, fine)
	another := b.leased(h, func(d *millrace.Deduplicate) { d.Epoch = 1 }) // whom the lease of the key does not stop
	rig.MustFail(t, another, again(msg), inbox.ErrInProgress, "it is running this step")
	b.exec(`UPDATE millrace_steps SET until = until - 1000000000`)
	must(t, another, again(msg))
	assert.Len(t, p.ids, 1)
	close(release)
	err := <-ended
	require.ErrorIs(t, err, errBoom)
	require.ErrorIs(t, err, inbox.ErrLeaseLost)
	story := rig.Story(t, b.store, msg.UUID)
	assert.Equal(t, admin.StepDone, story.Steps[0].State, "who lost it changes nothing")
}

func stepElsewhere(t *testing.T, b *bed) {
	msg := newMessage("x")
	begun, release := make(chan struct{}), make(chan struct{})
	slow, _ := stepping(inbox.Step{Name: "mail", Do: func(context.Context, string) ([]byte, error) {
		close(begun)
		<-release
		return []byte("of the first"), nil
	}}, fine)
	ended := rig.Handle(b.leased(slow, onStore(b.process())), again(msg))
	<-begun
	var p provider
	h, results := stepping(inbox.Step{Name: "mail", Do: p.call, Wait: 30 * time.Second}, fine)
	waited := rig.Handle(b.leased(h, func(d *millrace.Deduplicate) { d.Epoch = 1 }), again(msg))
	close(release)
	require.NoError(t, <-ended)
	require.NoError(t, <-waited)
	assert.Equal(t, []string{"of the first"}, *results)
	assert.Empty(t, p.ids)
}

// stepStale has one process find its lease taken when its call comes back.
func stepStale(t *testing.T, db *testdb.DB) {
	b := newBed(t, db)
	for name, c := range map[string]struct {
		stale, second inbox.Step
		decided       bool // by an operator, instead of the second
		told          int
	}{
		"called twice":               {told: 1},
		"called twice, one effect":   {stale: inbox.Step{Idempotent: true}},
		"found":                      {second: inbox.Step{Verify: found("first")}},
		"another effect than its":    {second: inbox.Step{Verify: found("not the first")}, told: 1},
		"found by an operator":       {decided: true},
		"called twice, other answer": {stale: inbox.Step{Idempotent: true}, second: inbox.Step{Do: answers("second")}, told: 1},
	} {
		t.Run(name, func(t *testing.T) {
			before := b.events.Count("double effect")
			msg := newMessage("x")
			begun, release := make(chan string, 1), make(chan struct{})
			c.stale.Name = "mail"
			c.stale.Do = func(_ context.Context, id string) ([]byte, error) {
				begun <- id
				<-release
				return []byte("first"), nil
			}
			stale, results := stepping(c.stale, fine)
			ended := rig.Handle(b.leased(stale, onStore(b.process())), again(msg))
			id := <-begun
			b.exec(`UPDATE millrace_steps SET until = until - 1000000000`)
			c.second.Name, c.second.Idempotent = "mail", true
			if c.second.Do == nil {
				c.second.Do = answers("first")
			}
			second, _ := stepping(c.second, fine)
			if c.decided {
				by := admin.Operator{Name: "ada", Reason: "asked the provider"}
				require.NoError(t, admin.New(b.store).DecideStep(t.Context(), id, admin.StepWasDone, by))
			} else {
				must(t, b.leased(second, func(d *millrace.Deduplicate) { d.Epoch = 1 }), again(msg))
			}
			close(release)
			require.NoError(t, <-ended)
			story := rig.Story(t, b.store, msg.UUID)
			assert.Equal(t, []string{string(story.Steps[0].Result)}, *results, "what is recorded counts")
			assert.Equal(t, c.told, b.events.Count("double effect")-before)
			if c.told > 0 {
				e := b.events.Last("double effect")
				assert.Equal(t, inbox.ReasonDuplicateStep, e.Reason)
				assert.Equal(t, msg.UUID, e.MessageID)
				assert.ErrorContains(t, e.Err, `step "mail"`)
			}
		})
	}
}

func found(result string) func(context.Context, string) (bool, []byte, error) {
	return func(context.Context, string) (bool, []byte, error) { return true, []byte(result), nil }
}

func answers(result string) func(context.Context, string) ([]byte, error) {
	return func(context.Context, string) ([]byte, error) { return []byte(result), nil }
}

func stepDecided(t *testing.T, b *bed) {
	by := admin.Operator{Name: "ada", Reason: "asked the provider"}
	var p provider
	h, results := stepping(inbox.Step{Name: "mail", Do: p.call}, fine)
	msg := b.inDoubt(&p)
	warned := func() (about string) {
		found := findings(t, b.store)
		for _, f := range found {
			if strings.Contains(f.Problem, "steps in doubt") {
				about = f.Subject
			}
		}
		return about
	}
	assert.Empty(t, warned(), "it is decided soon")
	b.exec(`UPDATE millrace_steps SET until = until - 1000000000`)
	assert.Equal(t, `consumer "billing", epoch 0`, warned())
	id := p.ids[0]
	require.Error(t, admin.New(b.store).DecideStep(t.Context(), id, admin.StepWasDone, admin.Operator{}))
	require.Error(t, admin.New(b.store).DecideStep(t.Context(), id, 7, by))
	require.Error(t, admin.New(b.store).DecideStep(t.Context(), "17", admin.StepWasDone, by))
	require.ErrorIs(t, admin.New(b.store).DecideStep(t.Context(), "00000000-0000-8000-8000-000000000000", admin.StepWasDone, by), inbox.ErrNotFound)
	pool, decided := faults.Open(t, b.db), false
	pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
		if call == faults.Begin && !decided { // the other operator has looked
			decided = true
			require.NoError(t, admin.New(b.store).DecideStep(t.Context(), id, admin.StepWasDone, by)) //nolint:contextcheck // the other operator
		}
		return nil
	}})
	later := admin.New(b.newStore(pool.DB, inbox.Config{}))
	for range 2 { // decided since the look, and before it
		err := later.DecideStep(t.Context(), id, admin.StepWasNotDone, by)
		require.ErrorIs(t, err, inbox.ErrWrongState)
		require.NotErrorIs(t, err, inbox.ErrNotFound)
		require.ErrorContains(t, err, "it is done")
	}
	require.True(t, decided)
	must(t, b.leased(h), again(msg))
	assert.Len(t, p.ids, 1)
	assert.Equal(t, []string{""}, *results)
	story := rig.Story(t, b.store, msg.UUID)
	assert.True(t, story.Steps[0].Verified)
	require.Len(t, story.Audit, 1)
	assert.Equal(t, []string{"billing", "decide step", `step "mail" was done`, "ada"},
		[]string{story.Audit[0].Consumer, story.Audit[0].Action, story.Audit[0].Detail, story.Audit[0].Operator.Name})

	p.ids = nil
	msg = b.inDoubt(&p)
	require.NoError(t, admin.New(b.store).DecideStep(t.Context(), p.ids[0], admin.StepWasNotDone, by))
	must(t, b.leased(h), again(msg))
	assert.Len(t, p.ids, 2)
}
