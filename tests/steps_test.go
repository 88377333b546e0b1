package tests_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/httpkey"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// provider is somebody who is called. It keeps what it was asked for.
type provider struct {
	ids   []string
	fails error // of the calls
	panic bool
}

func (p *provider) call(_ context.Context, id string) ([]byte, error) {
	p.ids = append(p.ids, id)
	if p.panic {
		panic("the process dies")
	}
	return []byte("receipt"), p.fails
}

// stepping is a handler that does a step, and then fails if it is told to.
func stepping(step inbox.Step, then func() error) (message.HandlerFunc, *[]string) {
	var results []string
	return func(msg *message.Message) ([]*message.Message, error) {
		result, err := step.Run(msg.Context())
		if err != nil {
			return nil, err
		}
		results = append(results, string(result))
		return nil, then()
	}, &results
}

func fine() error { return nil }

func onStore(store *inbox.Store) func(*millrace.Deduplicate) {
	return func(d *millrace.Deduplicate) { d.Claims = store.Leases() }
}

// stepBodies: what handlers do outside of their transactions.
var stepBodies = []testdb.Body{
	{Name: "a step is done once", Why: "a retry, another process and another epoch get the stored result", Run: testdb.With(newBed, stepDoneOnce)},
	{Name: "a step in doubt without Verify", Why: "nobody knows, so nothing is done", Run: testdb.With(newBed, stepUnverified)},
	{Name: "a step in doubt with Verify", Why: "Verify decides", Run: testdb.With(newBed, stepVerified)},
	{Name: "an idempotent step in doubt", Why: "it is repeated with the same id", Run: testdb.With(newBed, stepIdempotent)},
	{Name: "a step that was refused", Why: "it is certainly not done, so it is done again", Run: testdb.With(newBed, stepRefused)},
	{Name: "a refusal that is recorded at the second try", Why: "it is known all the same, so nobody has to decide", Run: testdb.With(newBed, stepRefusedAndLost)},
	{Name: "a step that was not called", Why: "its process knows, so the next attempt calls it", Run: testdb.With(newBed, stepNotCalled)},
	{Name: "a step of a process that died", Why: "it is in doubt when its lease ends, and not before", Run: testdb.With(newBed, stepOfTheDead)},
	{Name: "a step that another process is at", Why: "it is waited for, bounded", Run: testdb.With(newBed, stepElsewhere)},
	{Name: "a step whose lease was lost", Why: "a stale owner records nothing, and a duplicate is told", Run: stepStale},
	{Name: "the requests of a step", Why: "what is done bears the id of the step, and what is asked does not", Run: testdb.With(newBed, stepRequests)},
	{Name: "a step in a transaction", Why: "a call must not hold it", Run: testdb.With(newBed, stepInTx)},
	{Name: "a step without a place to record it", Why: "a clear error", Run: testdb.With(newBed, stepMisused)},
	{Name: "a result too large to keep", Why: "the step is done all the same", Run: testdb.With(newBed, stepTooLarge)},
	{Name: "a sealed result", Why: "it is stored like other payloads", Run: testdb.With(newBed, stepSealed)},
	{Name: "an operator decides a step", Why: "somebody must, where nothing else can", Run: testdb.With(newBed, stepDecided)},
	{Name: "the decision about a step is audited", Why: "as the consumer's, wherever its leases are kept", Run: testdb.With(newBed, stepDecisionIsAudited)},
	{Name: "a decided step is kept", Why: "as long as any other, and not for a century", Run: testdb.With(newBed, stepDecidedIsKept)},
	{Name: "steps are purged", Why: "not before the claim, never in doubt, never of what is open", Run: testdb.With(newBed, stepsPurged)},
	{Name: "a step of a replayed message", Why: "a rebuild sends nothing twice, a suppressed one nothing at all", Run: testdb.With(newBed, stepReplayed)},
}

func stepDoneOnce(t *testing.T, b *bed) {
	var p provider
	fails := errBoom
	h, results := stepping(inbox.Step{Name: "mail", Do: p.call}, func() error { return fails })
	msg := newMessage("x")
	rig.MustFail(t, b.leased(h), again(msg), errBoom)
	rig.MustFail(t, b.leased(h, onStore(b.process())), again(msg), errBoom)
	fails = nil
	must(t, b.leased(h), again(msg))
	must(t, b.leased(h, func(d *millrace.Deduplicate) { d.Epoch = 1 }), again(msg))
	assert.Equal(t, []string{"receipt", "receipt", "receipt", "receipt"}, *results)
	require.Len(t, p.ids, 1)

	must(t, b.leased(h), newMessage("x"))
	other, _ := stepping(inbox.Step{Name: "other", Do: p.call}, fine)
	must(t, b.leased(other, func(d *millrace.Deduplicate) { d.Epoch = 2 }), again(msg))
	must(t, b.leased(h, func(d *millrace.Deduplicate) { d.Consumer = "other" }), again(msg))
	require.Len(t, p.ids, 4, "another message, another name, another consumer")
	assert.Len(t, uniq(p.ids), 4)

	story := rig.Story(t, b.store, msg.UUID)
	require.Len(t, story.Steps, 3)
	s := story.Steps[0]
	assert.Equal(t, admin.StepDone, s.State)
	assert.Equal(t, []any{p.ids[0], "billing", "mail", msg.UUID, "receipt", 1, "", false},
		[]any{s.ID, s.Consumer, s.Name, s.MessageID, string(s.Result), s.Attempts, s.Problem, s.Verified})
	assert.False(t, s.StartedAt.IsZero() || s.EndedAt.Before(s.StartedAt))
	outline, err := admin.New(b.store).Outline(t.Context(), msg.UUID)
	require.NoError(t, err)
	assert.Nil(t, outline.Steps[0].Result)
}

func uniq(all []string) map[string]bool {
	set := map[string]bool{}
	for _, s := range all {
		set[s] = true
	}
	return set
}

// wire is an http.RoundTripper that keeps the idempotency keys it sees, and answers nothing.
type wire struct{ keys []string }

// RoundTrip keeps the key.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	w.keys = append(w.keys, req.Header.Get(httpkey.DefaultHeader))
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: req}, nil
}

// post sends body as a handler does.
func (w *wire) post(ctx context.Context, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bank.example/api", strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &httpkey.Transport{Base: w}}).Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func stepRequests(t *testing.T, b *bed) {
	var p provider
	msg := b.inDoubt(&p)
	var w wire
	var ids []string
	h := func(msg *message.Message) ([]*message.Message, error) {
		_, err := inbox.Step{
			Name: "mail",
			Verify: func(ctx context.Context, _ string) (bool, []byte, error) {
				return false, nil, w.post(ctx, "is it there?")
			},
			Do: func(ctx context.Context, id string) ([]byte, error) {
				ids = append(ids, id)
				return nil, w.post(ctx, "mail it")
			},
		}.Run(inbox.WithStep(msg.Context(), "what surrounds it"))
		return nil, err
	}
	must(t, b.leased(h), again(msg))
	require.Equal(t, p.ids, ids)
	require.Len(t, w.keys, 2)
	assert.NotEmpty(t, w.keys[0])
	assert.NotEqual(t, ids[0], w.keys[0])
	assert.Equal(t, ids[0], w.keys[1])
}

func stepInTx(t *testing.T, b *bed) {
	var p provider
	h, results := stepping(inbox.Step{Name: "mail", Do: p.call}, fine)
	msg := newMessage("x")
	rig.MustFail(t, b.inbox(h), again(msg), inbox.ErrHoldsTx)
	assert.Empty(t, p.ids)
	must(t, b.leased(h), again(msg))
	must(t, b.inbox(h), again(msg))
	assert.Len(t, p.ids, 1)
	assert.Equal(t, []string{"receipt", "receipt"}, *results, "what is stored can be had")
}

func stepMisused(t *testing.T, b *bed) {
	var p provider
	_, err := inbox.Once(t.Context(), "mail", p.call)
	require.ErrorIs(t, err, inbox.ErrNoMessage)
	memory := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	wrap := func(step inbox.Step) message.HandlerFunc {
		h, _ := stepping(step, fine)
		return millrace.Deduplicate{Claims: memory, Consumer: "billing"}.Middleware(h)
	}
	rig.MustFail(t, wrap(inbox.Step{Name: "mail", Do: p.call}), newMessage("x"), "there is no Store")
	_, err = wrap(inbox.Step{Store: b.store, Lease: time.Microsecond, Wait: -1})(newMessage("x"))
	for _, want := range []string{"Name has 0 bytes", "Do is required", "Lease 1µs is below", "Wait -1ns"} {
		require.ErrorContains(t, err, want)
	}
	must(t, wrap(inbox.Step{Name: "mail", Do: p.call, Store: b.store}), newMessage("x"))
	assert.Len(t, p.ids, 1)
	assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_steps`))
}

// TestSteps runs what handlers do outside of their transactions on every database.
func TestSteps(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, append(stepBodies, beforeBodies...))
}
