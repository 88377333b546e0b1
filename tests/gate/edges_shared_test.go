package gate_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

func twoConsumers(t *testing.T, b *bed) {
	const versions = 8
	var stores [2]*inbox.Store
	for i := range stores {
		stores[i] = b.process(testdb.Pool(2))
		for _, name := range []string{"one", "two"} {
			_, err := stores[i].Queue(inbox.QueueConfig{Consumer: name, MinBackoff: 10 * time.Millisecond})
			require.NoError(t, err)
		}
	}
	var messages []*message.Message
	for v := range int64(versions) {
		messages = append(messages, change("a", v+1), change("b", v+1))
	}
	for _, store := range stores {
		for _, name := range []string{"one", "two"} {
			sub := &list{messages: shuffled(messages), width: 4}
			b.route(store, name, sub, millrace.VersionGate{}, named(name))
		}
	}
	for _, name := range []string{"one", "two"} {
		for _, aggregate := range []string{"a", "b"} {
			b.eventually(name+" "+aggregate, versions)
		}
	}
}

// named is handler for one of several consumers.
func named(consumer string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		own := again(msg)
		own.SetContext(msg.Context())
		own.Metadata.Set(inbox.AggregateField, consumer+" "+msg.Metadata.Get(inbox.AggregateField))
		return nil, apply(own)
	}
}

func transfers(t *testing.T, b *bed) {
	const versions = 20
	both := func(msg *message.Message) ([]inbox.Version, error) {
		one, err := inbox.VersionFromMetadata()(msg)
		if err != nil {
			return nil, err
		}
		other := inbox.Version{Aggregate: "b", Number: one[0].Number}
		if one[0].Number%2 == 0 {
			return []inbox.Version{other, one[0]}, nil
		}
		return []inbox.Version{one[0], other}, nil
	}
	var messages []*message.Message
	for v := range int64(versions) {
		messages = append(messages, change("a", v+1))
	}
	var problems errorList
	for range 2 {
		sub := &list{messages: shuffled(messages), width: 4}
		b.route(b.process(), consumer, sub, millrace.VersionGate{Version: both}, handler, problems.middleware)
	}
	b.eventually("a", versions)
	assert.Empty(t, problems.all(), "no deadlock is seen outside")
	version, err := b.store.Version(t.Context(), inbox.Aggregate{Consumer: consumer, ID: "b"})
	require.NoError(t, err)
	assert.Equal(t, int64(versions), version)
}
