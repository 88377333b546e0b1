package interop_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestKafka(t *testing.T) {
	t.Parallel()
	group := "billing"
	deliver(t, testdb.On(t, "mysql"), newKafka(t, &group))
}

// The offsets of a group are set back to the beginning: another group has none. What it is given
// again has no effect again.
func TestKafkaOffsetReset(t *testing.T) {
	t.Parallel()
	group := "billing"
	p := newPipeline(t, testdb.On(t, "postgres"), newKafka(t, &group))
	relayUntilTheEnd(t, p.db, p.broker.publisher)
	p.produce(10)
	first := p.launch()
	require.EventuallyWithT(t, p.done, rig.Patience, 20*time.Millisecond)
	require.NoError(t, first.close())
	before := map[string]int{}
	for uuid := range p.committed {
		before[uuid] = p.seen.of(uuid).acks
	}
	group = "billing-from-the-beginning"
	p.produce(3)
	second := p.launch()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		p.done(c)
		for uuid, acks := range before {
			assert.Greater(c, p.seen.of(uuid).acks, acks, uuid)
		}
	}, rig.Patience, 20*time.Millisecond)
	require.NoError(t, second.close())
	p.reconcile()
}

// kafkaPosition tells where Kafka keeps a message, as long as watermill-kafka's context is there.
func kafkaPosition(msg *message.Message) (inbox.Position, error) {
	partition, known := kafka.MessagePartitionFromCtx(msg.Context())
	offset, alsoKnown := kafka.MessagePartitionOffsetFromCtx(msg.Context())
	if !known || !alsoKnown {
		return inbox.Position{}, errors.New("the message does not come from Kafka")
	}
	return inbox.Position{Partition: strconv.Itoa(int(partition)), Offset: offset}, nil
}

// A message that fails is stored with its place in Kafka, and a copy of one that was handled is logged with it. The
// place is its key, too, though the table does not bring it back.
func TestKafkaPositions(t *testing.T) {
	t.Parallel()
	group := "billing"
	p := newPipeline(t, testdb.On(t, "postgres"), newKafka(t, &group))
	store := rig.NewStore(t, p.db.DB, inbox.Config{Position: kafkaPosition, LogDropped: true})
	require.NoError(t, store.Migrate(t.Context()))
	durable := pubsub.Durable{Store: store, Consumer: "billing", Key: inbox.ByPosition(kafkaPosition), MaxAttempts: 1}
	sub, err := durable.Decorate(p.broker.subscriber())
	require.NoError(t, err)
	router := rig.NewRouter(t)
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(millrace.Inbox{Store: store, Key: inbox.ByPosition(kafkaPosition)}.Middleware)
	broken := make(chan struct{})
	router.AddConsumerHandler("billing", p.broker.topic, sub, func(*message.Message) error {
		select {
		case <-broken:
			return nil
		default:
			return errRolledBack
		}
	})
	rig.Run(t, router)
	sent := message.NewMessage(watermill.NewUUID(), nil)
	sent.Metadata.Set("key", "a")
	require.NoError(t, p.broker.publisher.Publish(p.broker.topic, sent))
	rig.Eventually(t, "it is parked", func() bool { return len(rig.Parked(t, store)) == 1 })
	parked := rig.Parked(t, store)[0]
	assert.Equal(t, p.broker.topic, parked.Position.Topic)
	assert.Regexp(t, `^[012]$`, parked.Position.Partition)
	assert.Zero(t, parked.Position.Offset)
	close(broken)
	require.NoError(t, admin.New(store).Retry(t.Context(), parked.ID, admin.Operator{Name: "ada", Reason: "mended"}, nil))
	rig.Eventually(t, "it is handled", func() bool { return len(rig.Find(t, store, admin.Filter{})) == 0 })
}
