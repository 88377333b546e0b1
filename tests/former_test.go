package tests_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/httpkey"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The last release knows messages by their UUID, the next one by their order.

// byOrder makes a process one of the next release, which looks under the former key as well.
func byOrder(i *millrace.Inbox) {
	i.Epoch, i.Key, i.FormerKey = 1, inbox.ByMetadata("order"), inbox.ByUUID()
}

// ordered is a message that both releases have a key of.
func ordered(order string) *message.Message {
	msg := newMessage("of " + order)
	msg.Metadata.Set("order", order)
	return msg
}

// formerBodies: a key that changes without anything being forgotten.
var formerBodies = []testdb.Body{
	{Name: "a former key", Why: "what the last release handled is not handled again", Run: testdb.With(newBed, formerHandled)},
	{Name: "a former key, and messages of two releases", Why: "each is handled by one of them, once", Run: testdb.With(newBed, formerBoth)},
	{Name: "a former key, and a handler that fails", Why: "the last release may have the message then", Run: testdb.With(newBed, formerFails)},
	{Name: "a former key that two messages share", Why: "among what the next release handles its own key decides", Run: testdb.With(newBed, formerShared)},
	{Name: "a former key and what was produced", Why: "an outcome is published again until it is known to be", Run: testdb.With(newBed, formerOutcome)},
	{Name: "a former key and Before", Why: "it does not run for what was handled", Run: testdb.With(newBed, formerBefore)},
	{Name: "a former key that is another one", Why: "it would find nothing", Run: testdb.With(newBed, formerWrong)},
	{Name: "a former key and a step", Why: "what the last release has done is not done again", Run: testdb.With(newBed, formerStep)},
	{Name: "a former key and the requests of a step", Why: "a repeated call bears the key of the first", Run: testdb.With(newBed, formerRequests)},
	{Name: "a former key and what is forgotten", Why: "what is too old for the last release is too old", Run: testdb.With(newBed, formerTooOld)},
	{Name: "a former key of a message that failed in the last release", Why: "its row there is closed by whoever handles it", Run: testdb.With(newBed, formerRecorded)},
	{Name: "a former key that cannot be found", Why: "the message has none, unless it could not be asked for", Run: testdb.With(newBed, formerUnknown)},
	{Name: "a former key and a collision", Why: "what was handled is none", Run: testdb.With(newBed, formerCollides)},
	{Name: "a former key that many messages share", Why: "they do not wait for each other", Run: testdb.With(newBed, formerMany)},
	{Name: "a former key that is no longer needed", Why: "a process that runs for long says so too", Run: testdb.With(newBed, formerOver)},
	{Name: "a former key and a version gate", Why: "versions belong to the epoch", Run: testdb.With(newBed, formerGate)},
}

func formerHandled(t *testing.T, b *bed) {
	old := ordered("1")
	must(t, b.inbox(effect), again(old))

	next := b.inbox(effect, on(b.process()), byOrder)
	must(t, next, again(old))
	must(t, b.inbox(effect, on(b.process()), byOrder), again(old))
	assert.Equal(t, 1, b.effects())

	fresh, withoutUUID := ordered("2"), ordered("3")
	withoutUUID.UUID = ""
	for range 2 {
		must(t, next, again(fresh))
		must(t, next, again(withoutUUID))
	}
	assert.Equal(t, 3, b.effects(), "a message without a former key is a message all the same")
	must(t, b.inbox(effect), again(fresh))
	assert.Equal(t, 3, b.effects(), "a process of the last release takes its copy for a duplicate")
	claims := rig.Story(t, b.store, fresh.UUID).Claims
	require.Len(t, claims, 1)
	assert.Equal(t, []bool{true, true}, []bool{claims[0].Completed, claims[0].Superseded})

	other := again(old)
	other.Payload = message.Payload("changed")
	must(t, next, other)
	parked := rig.Parked(t, b.store)
	require.Len(t, parked, 1, "a UUID belongs to one message")
	assert.Equal(t, inbox.ReasonCollision, b.events.Last("parked").Reason)
	assert.Equal(t, 3, b.effects())
}

func formerBoth(t *testing.T, b *bed) {
	const messages = 30
	var processes []message.HandlerFunc
	for range 2 {
		processes = append(processes, b.inbox(effect, on(b.process())), b.inbox(effect, on(b.process()), byOrder))
	}
	var all []*message.Message
	for i := range messages {
		all = append(all, ordered(fmt.Sprint(i)))
	}
	for _, h := range processes {
		must(t, h, ordered("first")) // to register takes a turn of SQLite's one writer, within ten seconds
	}
	var wg sync.WaitGroup
	for _, h := range processes {
		for _, i := range rand.Perm(messages) {
			wg.Go(func() {
				for {
					if _, err := h(again(all[i])); err == nil || !assert.ErrorIs(t, err, inbox.ErrInProgress) {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for _, msg := range all {
		assert.Equal(t, 1, b.effectsOf(msg.UUID))
	}
	b.nothingOpen()
}

func formerFails(t *testing.T, b *bed) {
	for name, fail := range map[string]func(msg *message.Message) error{
		"fails": func(*message.Message) error { return errBoom },
		"commits by itself, and fails": func(msg *message.Message) error {
			return errors.Join(errBoom, end(msg, (*sqlx.Tx).Commit))
		},
	} {
		msg := ordered(name)
		rig.MustFail(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) { return nil, fail(msg) }, byOrder), again(msg), errBoom)
		must(t, b.inbox(effect, on(b.process())), again(msg))
		assert.Equal(t, 1, b.effectsOf(msg.UUID), name)
	}
}

func formerShared(t *testing.T, b *bed) {
	byTenant := func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("tenant") }
	byUUID := func(i *millrace.Inbox) { i.Epoch, i.FormerKey = 1, inbox.ByMetadata("tenant") }
	var all []*message.Message
	for _, tenant := range []string{"a", "b", "b"} {
		msg := newMessage("of " + tenant)
		msg.Metadata.Set("tenant", tenant)
		all = append(all, msg)
	}
	must(t, b.inbox(effect, byTenant), again(all[0]))
	for range 2 {
		for _, msg := range all {
			must(t, b.inbox(effect, on(b.process()), byUUID), again(msg))
		}
	}
	assert.Equal(t, []int{1, 1, 1}, []int{b.effectsOf(all[0].UUID), b.effectsOf(all[1].UUID), b.effectsOf(all[2].UUID)})

	late := again(all[0])
	late.UUID = newMessage("").UUID
	must(t, b.inbox(effect, byUUID), late)
	assert.Equal(t, 0, b.effectsOf(late.UUID), "the last release handled its tenant")
}

func formerOutcome(t *testing.T, b *bed) {
	msg := ordered("1")
	out := newMessage("an invoice")
	produce := func(*message.Message) ([]*message.Message, error) { return []*message.Message{out}, nil }
	before := b.newService(produce, millrace.Inbox{Store: b.store, Consumer: "billing"}.Middleware)
	before.published.FailWith(errBoom)
	assert.False(t, before.deliver(again(msg)))
	require.NoError(t, before.router.Close())

	next := millrace.Inbox{Store: b.store, Consumer: "billing"}
	byOrder(&next)
	after := b.newService(func(*message.Message) ([]*message.Message, error) {
		t.Error("it was handled")
		return nil, nil
	}, next.Middleware)
	assert.True(t, after.deliver(again(msg)))
	require.Len(t, after.published.Messages(), 1)
	assert.Equal(t, out.UUID, after.published.Messages()[0].UUID)
}

func formerBefore(t *testing.T, b *bed) {
	msg := ordered("1")
	must(t, b.inbox(effect), again(msg))
	ran := 0
	count := before(func(*message.Message) error { ran++; return nil })
	next := b.inbox(effect, on(b.process()), byOrder, count)
	must(t, next, again(msg))
	assert.Equal(t, 0, ran)
	must(t, next, ordered("2"))
	assert.Equal(t, 1, ran)
	assert.Equal(t, 2, b.effects())
}

func formerWrong(t *testing.T, b *bed) {
	must(t, b.inbox(effect), newMessage("x"))
	wrong := millrace.Inbox{Store: b.process(), Consumer: "billing", Key: inbox.ByMetadata("order"), Options: inbox.Options{Epoch: 1, FormerKey: inbox.ByPayload()}}
	err := wrong.Verify(t.Context(), "billing")
	require.ErrorIs(t, err, inbox.ErrKeyChanged)
	require.ErrorContains(t, err, "FormerKey is payload, and epoch 0 has uuid: give FormerKey that one")
	rig.MustFail(t, wrong.Middleware(effect), ordered("1"), inbox.ErrKeyChanged)

	wrong.Epoch = 0
	require.ErrorContains(t, wrong.Validate(), "raise Epoch by 1")
	wrong.Epoch, wrong.FormerKey = 1, wrong.Key
	require.ErrorContains(t, wrong.Validate(), "are the same")
}

func formerStep(t *testing.T, b *bed) {
	var p provider
	do := func(msg *message.Message) error {
		_, err := inbox.Step{Name: "mail", Do: p.call}.Run(msg.Context())
		return err
	}
	fails := errBoom
	h := func(msg *message.Message) ([]*message.Message, error) {
		return nil, errors.Join(apply(msg.Context(), msg.UUID), fails)
	}
	msg := ordered("1")
	rig.MustFail(t, b.inbox(h, before(do)), again(msg), errBoom)

	fails = nil
	must(t, b.inbox(h, on(b.process()), before(do), byOrder), again(msg))
	assert.Equal(t, 1, b.effects())
	assert.Len(t, p.ids, 1, "the step was done")
	must(t, b.inbox(h, on(b.process()), before(do), byOrder), ordered("2"))
	assert.Len(t, p.ids, 2)
}

func formerRequests(t *testing.T, b *bed) {
	var answer int
	keys := map[string][]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys[r.URL.Path] = append(keys[r.URL.Path], r.Header.Get(httpkey.DefaultHeader))
		w.WriteHeader(answer)
	}))
	defer server.Close()
	client := &http.Client{Transport: &httpkey.Transport{Required: true}}
	send := func(ctx context.Context, path string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, http.NoBody)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		if resp.StatusCode != http.StatusOK {
			return errBoom
		}
		return nil
	}
	step := func(name string, do func(ctx context.Context) error) inbox.Step {
		return inbox.Step{Name: name, Idempotent: true, Do: func(ctx context.Context, id string) ([]byte, error) {
			made, err := inbox.ID(ctx, name)
			require.NoError(t, err)
			assert.Equal(t, id, made)
			return nil, do(ctx)
		}}
	}
	later := false // the next release has one step more
	call := before(func(msg *message.Message) error {
		_, err := step("pay", func(ctx context.Context) error {
			var err error
			if later {
				_, err = step("log", func(ctx context.Context) error { return send(ctx, "/log") }).Run(ctx)
			}
			return errors.Join(err, send(inbox.WithStep(ctx, "fee"), "/fee"), send(ctx, "/pay"))
		}).Run(msg.Context())
		return err
	})
	msg := ordered("1")
	answer = http.StatusBadGateway // after the provider has charged
	rig.MustFail(t, b.inbox(effect, call), again(msg), errBoom)
	answer, later = http.StatusOK, true
	must(t, b.inbox(effect, on(b.process()), call, byOrder), again(msg))
	for _, path := range []string{"/pay", "/fee"} {
		require.Len(t, keys[path], 2)
		assert.Equal(t, keys[path][0], keys[path][1], path)
	}
	assert.Len(t, keys["/log"], 1)
}

func formerTooOld(t *testing.T, b *bed) {
	msg := ordered("1")
	b.forgotten(msg)
	must(t, b.inbox(effect, byOrder, func(i *millrace.Inbox) { i.MessageTime = longAgo }), again(msg))
	assert.Equal(t, 0, b.effects())
	parked := rig.Parked(t, b.store)
	require.Len(t, parked, 1)
	assert.Contains(t, parked[0].Reason, "too old")
}

func formerRecorded(t *testing.T, b *bed) {
	msg := ordered("1")
	rig.MustFail(t, b.inbox(alwaysFails, recorded), again(msg), errBoom)
	must(t, b.inbox(effect, on(b.process()), recorded, byOrder), again(msg))
	must(t, b.inbox(effect, on(b.process()), recorded, byOrder), again(msg))
	assert.Equal(t, 1, b.effects())
	b.nothingOpen()
}

func formerUnknown(t *testing.T, b *bed) {
	key := func(find func() (string, error)) func(*millrace.Inbox) {
		return func(i *millrace.Inbox) {
			i.Epoch, i.FormerKey = 1, inbox.ByFunc("asked", func(*message.Message) (string, error) { return find() })
		}
	}
	must(t, b.inbox(effect, key(func() (string, error) { panic("unknown") })), newMessage("x"))
	assert.Equal(t, 1, b.effects())
	assert.Contains(t, strings.Join(b.events.Logs(), "\n"), "FormerKey failed on a message")
	rig.MustFail(t, b.inbox(effect, key(func() (string, error) { return "", inbox.ErrUnavailable })), newMessage("y"), inbox.ErrUnavailable)
	assert.Equal(t, 1, b.effects())
}

func formerCollides(t *testing.T, b *bed) {
	msg, other, third := ordered("1"), ordered("1"), ordered("1")
	other.Payload, third.Payload = message.Payload("another of the same order"), message.Payload("a third")
	must(t, b.inbox(effect), again(msg))
	fails := func(i *millrace.Inbox) { i.OnCollision = inbox.CollisionFail }
	next := b.inbox(effect, on(b.process()), byOrder, fails)
	must(t, next, again(other))
	must(t, next, again(msg))
	assert.Equal(t, 2, b.effects())
	rig.MustFail(t, next, third, inbox.ErrCollision)
}

func formerMany(t *testing.T, b *bed) {
	if b.db.Dialect == "sqlite" {
		return // one handler at a time
	}
	shared := func(i *millrace.Inbox) {
		i.Epoch, i.FormerKey = 1, inbox.ByFunc("one", func(*message.Message) (string, error) { return "one", nil })
	}
	first, slow, other := newMessage("first"), newMessage("slow"), newMessage("other")
	next := b.inbox(effect, shared)
	must(t, next, first)
	must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		must(t, next, other)
		return effect(msg)
	}, on(b.process()), shared), slow)
	assert.Equal(t, 3, b.effects())
}

func formerOver(t *testing.T, b *bed) {
	must(t, b.inbox(effect, byOrder), ordered("1"))
	purge := func() string {
		_, err := b.store.Purge(t.Context())
		require.NoError(t, err)
		return strings.Join(b.events.Logs(), "\n")
	}
	const over = "FormerKey may be over: remove it Retention after the last process of the last release ended"
	assert.NotContains(t, purge(), over)
	b.exec(`UPDATE millrace_consumers SET created_at = created_at - 691200000000 WHERE epoch = 1`) // eight days
	purge()
	assert.Equal(t, 1, strings.Count(purge(), over))
}

func formerGate(t *testing.T, b *bed) {
	msg := ordered("1")
	gate := millrace.VersionGate{Store: b.store}
	rig.MustFail(t, b.inbox(gate.Middleware(effect), byOrder), again(msg), "FormerKey")
	assert.Equal(t, 0, b.effects())
}
