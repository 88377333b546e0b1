package policy_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
)

const day = 24 * hour

// full are rules that say everything that can be said together.
func full() policy.Policy {
	version := policy.Version{
		From: "json:order,version", Sequence: policy.SequenceOptional, OnGap: policy.GapHold,
		First: policy.FirstSeen, MaxHeld: 7, HeldFor: hour,
	}
	return consumers(map[string]policy.Rules{
		"gate": {
			Strategy: policy.Gate, Consumer: "g", Epoch: 3, Key: policy.Key{From: "metadata:id+uuid", Within: "topic"},
			Version: version, Retention: 9 * day, Window: 4 * day, Ack: policy.AckStored, Timeout: 11 * second,
			Retry:    policy.Retry{Attempts: 4, Backoff: 2 * second, MaxBackoff: 3 * second},
			OrderKey: "metadata:order", OnParked: policy.Continue, Collision: policy.CollisionFail, Replay: policy.ReplaySuppress,
		},
		"dedup": {
			Strategy: policy.Dedup, Consumer: "d", Epoch: 4, Key: policy.Key{From: "metadata:id", Optional: true, Within: "type"},
			Retention: 3 * hour, Replay: policy.ReplayRefuse,
		},
		"fails":  {Strategy: policy.Gate, Version: policy.Version{OnGap: policy.GapFail, GapFor: 2 * hour}},
		"latest": {Strategy: policy.Latest, Retention: policy.Forever},
		"plain":  {},
	})
}

// What the rules say is what the middlewares are given.
func TestRulesReachTheMiddlewares(t *testing.T) {
	store, out := newStore(t), &rig.Publisher{}
	w := policy.Wiring{Store: store, Outbox: out}
	w.Inbox.TwinWait, w.Gate.OnCollision, w.Durable.Concurrency, w.Deduplicate.Wait = 1, inbox.VersionDrop, 3, 2
	w.Inbox.Fingerprint = func(*message.Message) ([]byte, error) { return []byte("print"), nil }
	w.Inbox.Redelivered = func(*message.Message) bool { return true }
	wired, err := full().Wire(newRouter(t), w)
	require.NoError(t, err)

	i, err := wired.InboxOf("gate")
	require.NoError(t, err)
	require.Equal(t, `joined(metadata:"id",uuid)/topic`, i.Key.String())
	i.Key, i.Fingerprint, i.Redelivered = inbox.Key{}, nil, nil
	require.Equal(t, millrace.Inbox{
		Store: store, Outbox: out, Consumer: "g", Timeout: 11 * time.Second,
		Options: inbox.Options{
			Epoch: 3, Retention: 9 * 24 * time.Hour, Window: 4 * 24 * time.Hour,
			OnCollision: inbox.CollisionFail, OnReplay: inbox.ReplaySuppress, TwinWait: 1,
		},
	}, i)

	g, err := wired.GateOf("gate")
	require.NoError(t, err)
	versions, err := g.Version(message.NewMessage("", []byte(`{"order":"o","version":5}`)))
	require.NoError(t, err)
	require.Equal(t, []inbox.Version{{Aggregate: "o", Number: 5}}, versions)
	g.Version = nil
	require.Equal(t, millrace.VersionGate{
		Optional: true, OnGap: inbox.GapHold, First: inbox.FirstSeen, MaxHeld: 7, HeldFor: time.Hour,
		OnCollision: inbox.VersionDrop,
	}, g)

	g, err = wired.GateOf("fails")
	require.NoError(t, err)
	require.Equal(t, inbox.GapFail, g.OnGap)
	require.Equal(t, 2*time.Hour, g.GapFor)

	d, err := wired.DurableOf("gate")
	require.NoError(t, err)
	msg := message.NewMessage("", nil)
	msg.Metadata.Set("order", "17")
	of, err := d.OrderKey(msg)
	require.NoError(t, err)
	require.Equal(t, "17", of)
	require.Equal(t, `joined(metadata:"id",uuid)/topic`, d.Key.String())
	fingerprint, err := d.Fingerprint(msg)
	require.NoError(t, err)
	require.Equal(t, "print", string(fingerprint))
	require.True(t, d.Redelivered(msg))
	d.OrderKey, d.Key, d.Fingerprint, d.Redelivered = nil, inbox.Key{}, nil, nil
	require.Equal(t, pubsub.Durable{
		Store: store, Mode: pubsub.StoreFirst, Consumer: "g", Epoch: 3, OnParked: inbox.Continue,
		MaxAttempts: 4, MinBackoff: 2 * time.Second, MaxBackoff: 3 * time.Second, Concurrency: 3,
	}, d)

	dedup, err := wired.DeduplicateOf("dedup")
	require.NoError(t, err)
	require.Equal(t, `first(metadata:"id"/type,uuid)`, dedup.Key.String())
	dedup.Key = inbox.Key{}
	require.Equal(t, millrace.Deduplicate{
		Claims: store.Leases(), Consumer: "d", Epoch: 4, Retention: 3 * time.Hour, OnReplay: inbox.ReplayRefuse, Wait: 2,
	}, dedup)
}

// Where the rules say nothing the middlewares are given nothing.
func TestSilentRulesLeaveTheDefaults(t *testing.T) {
	store := newStore(t)
	wired, err := full().Wire(newRouter(t), policy.Wiring{Store: store})
	require.NoError(t, err)
	i, err := wired.InboxOf("plain")
	require.NoError(t, err)
	require.Equal(t, "uuid", i.Key.String())
	i.Key = inbox.Key{}
	require.Equal(t, millrace.Inbox{Store: store}, i)

	latest, err := wired.InboxOf("latest")
	require.NoError(t, err)
	require.Equal(t, inbox.Forever, latest.Retention)
	g, err := wired.GateOf("latest")
	require.NoError(t, err)
	g.Version = nil
	require.Equal(t, millrace.VersionGate{OnGap: inbox.GapLatest}, g)
	d, err := wired.DurableOf("plain")
	require.NoError(t, err)
	d.Key = inbox.Key{}
	require.Equal(t, pubsub.Durable{Store: store, Consumer: "plain"}, d)
}

func TestWhatIsKeptAndWhatIsDoneBefore(t *testing.T) {
	did := errors.New("done before")
	wired, err := consumers(map[string]policy.Rules{"mails": {SideEffects: policy.OnceSteps, Journal: true}, "billing": {}}).Wire(
		newRouter(t), policy.Wiring{
			Store: newStore(t), Before: map[string]func(*message.Message) error{"mails": func(*message.Message) error { return did }},
		})
	require.NoError(t, err)
	mails, err := wired.InboxOf("mails")
	require.NoError(t, err)
	require.True(t, mails.Journal)
	require.ErrorIs(t, mails.Before(nil), did)
	billing, err := wired.InboxOf("billing")
	require.NoError(t, err)
	require.False(t, billing.Journal)
	require.Nil(t, billing.Before)
}

func TestKeys(t *testing.T) {
	business := inbox.ByFunc("business", func(*message.Message) (string, error) { return "b", nil })
	w := policy.Wiring{Store: newStore(t), Keys: map[string]inbox.Key{"business": business}}
	for from, want := range map[string]string{
		"":                       "uuid",
		"uuid":                   "uuid",
		"payload":                "payload",
		"cloudevent":             "cloudevent",
		"metadata:order_id":      `metadata:"order_id"`,
		"json:order.id":          `json:"order.id"`,
		"json:order.id, line":    `json:"order.id","line"`,
		"func:business":          `func:"business"`,
		"metadata:a + json:b":    `joined(metadata:"a",json:"b")`,
		"metadata:urn:a+uuid":    `joined(metadata:"urn:a",uuid)`,
		"func:business+json:x,y": `joined(func:"business",json:"x","y")`,
	} {
		wired, err := consumers(map[string]policy.Rules{"billing": {Key: policy.Key{From: from}}}).Wire(newRouter(t), w)
		require.NoError(t, err, from)
		i, err := wired.InboxOf("billing")
		require.NoError(t, err, from)
		require.Equal(t, want, i.Key.String(), from)
	}
}

func TestVersions(t *testing.T) {
	of := func(*message.Message) ([]inbox.Version, error) {
		return []inbox.Version{{Aggregate: "func", Number: 1}}, nil
	}
	w := policy.Wiring{Store: newStore(t), Versions: map[string]inbox.VersionFunc{"mine": of}}
	msg := message.NewMessage("", []byte(`{"id":"json","no":1}`))
	for field, value := range map[string]string{
		inbox.AggregateField: "metadata", inbox.VersionField: "1", "ce_partitionkey": "cloudevent", "ce_sequence": "1",
	} {
		msg.Metadata.Set(field, value)
	}
	for from, want := range map[string]string{
		"": "metadata", "metadata": "metadata", "cloudevent": "cloudevent", "json:id,no": "json", "func:mine": "func",
	} {
		rules := policy.Rules{Strategy: policy.Latest, Version: policy.Version{From: from}}
		wired, err := consumers(map[string]policy.Rules{"billing": rules}).Wire(newRouter(t), w)
		require.NoError(t, err, from)
		g, err := wired.GateOf("billing")
		require.NoError(t, err, from)
		versions, err := g.Version(msg)
		require.NoError(t, err)
		require.Equal(t, []inbox.Version{{Aggregate: want, Number: 1}}, versions)
	}
}

func TestKeysAndVersionsThatCannotBeRead(t *testing.T) {
	const key = "is not a key: write uuid, payload, cloudevent, metadata:FIELD, json:PATH, or func:NAME, and several with + between them"
	const path = "a path of json: is empty: separate paths with a comma, such as json:order.id,line"
	for from, want := range map[string]string{
		"id": `"id" ` + key, "uuid+": `in "uuid+": "" ` + key, "metadata:": `"metadata:" ` + key, "uuid:a": `"uuid:a" ` + key,
		"json:a,,b": path,
	} {
		_, err := consumers(map[string]policy.Rules{"billing": {Key: policy.Key{From: from}}}).Wire(newRouter(t), policy.Wiring{Store: newStore(t)})
		require.EqualError(t, err, "consumers.billing.key.from: "+want)
	}
	for from, want := range map[string]string{
		"sequence": `"sequence" is not a version: write metadata, cloudevent, json:AGGREGATE,VERSION, or func:NAME`,
		"json:a":   `"json:a" is not a version: write json:AGGREGATE,VERSION, two paths`,
		"json:a,":  path,
	} {
		rules := policy.Rules{Strategy: policy.Gate, Version: policy.Version{From: from}}
		_, err := consumers(map[string]policy.Rules{"billing": rules}).Wire(newRouter(t), policy.Wiring{Store: newStore(t)})
		require.EqualError(t, err, "consumers.billing.version.from: "+want)
	}
}
