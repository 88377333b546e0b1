package outbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A relay to a real RabbitMQ meets a message that fails, a key whose first message fails, a
// topic that no queue takes, and messages that are too large, in their payload and in their
// metadata. Each is parked after its attempts, with a reason that names it, what is behind
// the key waits, and everything else is sent, in the order of its key. RabbitMQ closes the
// channel on which the message comes that is too large, so what was in one call with it is
// sent again.
func TestTroubleStopsNothingElse(t *testing.T) {
	testdb.Turn(t, 1, outages)
	t.Parallel()
	p := newPost(t, testdb.On(t, "postgres"))
	broker := rabbitmq.NewQueueConfig(servers.RabbitMQ(t, "max_message_size = 100000").URL(), rabbitmq.Queues{})
	require.NoError(t, rabbitmq.Declare(broker, "orders"))
	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })

	trouble := letters("", 4)
	poison, unroutable, large, wide := trouble[0], trouble[1], trouble[2], trouble[3]
	large.Payload = make([]byte, 100_001)
	wide.Metadata.Set("note", strings.Repeat("x", 200_000))
	stuck := letters("stuck", 3)
	want := make(map[string][]string)
	var flows []string
	send := func() {
		for _, key := range []string{"a", "b", ""} {
			ids := p.send("orders", key, 3)
			flows = append(flows, ids...)
			if key != "" {
				want[key] = append(want[key], ids...)
			}
		}
	}
	for _, m := range append(trouble, stuck...) {
		send()
		topic := "orders"
		if m == unroutable {
			topic = "nowhere"
		}
		p.store(topic, m)
	}
	send()
	together := len(flows)

	seen := &events{}
	p.relayTo(refusing{publisher, poison.UUID, stuck[0].UUID}, seen.observe, func(c *outbox.RelayConfig) { c.MaxAttempts = 3 })
	for range 20 {
		send()
	}
	for _, m := range append(trouble, stuck[0]) {
		rig.Eventually(p, "a message is parked", func() bool {
			if p.rows() == len(trouble)+len(stuck) {
				send() // an attempt is charged only while others get through
			}
			return p.row(m.UUID).Status == rowParked
		})
	}
	for range 20 {
		send()
	}
	rig.Eventually(p, "what is left is the trouble", func() bool { return p.rows() == len(trouble)+len(stuck) })
	for _, m := range stuck[1:] {
		p.awaitStatus(m.UUID, rowHeld)
	}
	for _, m := range readAll(t, broker.Connection.AmqpURI, "orders") {
		require.NoError(t, p.broker.Publish("orders", m))
	}
	deliveries, again := p.broker.deliveries(), 0
	assert.Len(t, deliveries, len(flows), "messages that were sent")
	for _, id := range flows {
		assert.Positive(t, deliveries[id], "times that message %s was sent", id)
		again += deliveries[id] - 1
	}
	assert.LessOrEqual(t, again, together, "only what was in one call with the large message")
	p.inOrder(want)

	parked, err := p.out.Parked(t.Context(), 0, 100)
	require.NoError(t, err)
	for _, m := range parked {
		assert.Equal(t, 3, m.Attempts, m.Error)
		assert.Contains(t, m.Error, m.Message.UUID)
	}
	assert.Contains(t, p.reason(unroutable), `"nowhere"`)
	assert.Contains(t, p.reason(large), "100000")
	assert.Contains(t, p.reason(wide), "frame_max")
}

// reason returns what is said of a message that is parked.
func (p *post) reason(m *message.Message) string {
	p.Helper()
	row := p.row(m.UUID)
	require.NotNil(p, row)
	require.NotNil(p, row.LastError)
	return *row.LastError
}

// refusing is a publisher that cannot send two messages, and says so.
type refusing struct {
	*rabbitmq.Publisher
	first, second string
}

func (r refusing) Publish(topic string, msgs ...*message.Message) error {
	partial := &outbox.PartialError{Errors: make([]error, len(msgs))}
	var sent []*message.Message
	var at []int
	for i, m := range msgs {
		if m.UUID == r.first || m.UUID == r.second {
			partial.Errors[i] = errors.New("message " + m.UUID + " cannot be sent")
			continue
		}
		sent, at = append(sent, m), append(at, i)
	}
	err := r.Publisher.Publish(topic, sent...)
	var failed *outbox.PartialError
	switch {
	case errors.As(err, &failed):
		for n, i := range at {
			partial.Errors[i] = failed.Errors[n]
		}
	case err != nil:
		return err
	case len(sent) == len(msgs):
		return nil
	}
	return partial
}

// A relay records failures on a server with small packets, however many there are and however long their errors.
func TestFailuresLargerThanAPacketAreRecorded(t *testing.T) {
	t.Parallel()
	db := testdb.At(t, "mysql", servers.MariaDB(t, "max-allowed-packet=1048576").DSN())
	page := outbox.Permanent(errors.New(strings.Repeat("<p>", 1000)))
	const count = 300
	for name, params := range map[string][]string{"prepared": nil, "in the text": {"interpolateParams", "true"}} {
		t.Run(name, func(t *testing.T) {
			p, b := newPost(t, db), newStrict(t)
			b.refusing(func(string, *message.Message) error { return page })
			p.store("orders", letters("", count)...)
			start(t, p.relayOn(db.Open(t, testdb.Params(params...)).DB, b, holding))
			rig.Eventually(t, "all are parked", func() bool {
				return p.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox WHERE status = ?`, rowParked) == count
			})
			p.db.Do(t, `DELETE FROM millrace_outbox`)
		})
	}
}
