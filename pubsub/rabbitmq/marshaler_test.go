package rabbitmq_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

func TestUnmarshalTurnsAnyHeaderIntoText(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.FixedZone("", 3600))
	headers := amqp091.Table{
		"text": "é\x00\xff", "true": true, "byte": byte(7), "int8": int8(-8), "int16": int16(-16),
		"int32": int32(-32), "int64": int64(math.MinInt64), "float32": float32(1.5), "float64": 1e300,
		"nan": math.NaN(), "inf": math.Inf(-1), "time": at, "nothing": nil, "bytes": []byte("bytes"),
		"binary": []byte{0xff, 0}, "decimal": amqp091.Decimal{Scale: 2, Value: -12345},
		"list":  []any{int64(1), "two", []byte("three"), at, math.NaN(), nil, amqp091.Decimal{Value: 4}},
		"table": amqp091.Table{"b": amqp091.Table{"list": []any{true}}, "a": int32(1)},
		"empty": amqp091.Table{}, "strange": complex(1, 2),
	}
	msg, err := rabbitmq.Marshaler{}.Unmarshal(amqp091.Delivery{Headers: headers, Body: []byte{0, 0xff}})
	require.NoError(t, err)
	assert.Equal(t, message.Metadata{
		"text": "é\x00\xff", "true": "true", "byte": "7", "int8": "-8", "int16": "-16", "int32": "-32",
		"int64": "-9223372036854775808", "float32": "1.5", "float64": "1e+300", "nan": "NaN", "inf": "-Inf",
		"time": "2026-11-21T09:00:00Z", "nothing": "", "bytes": "bytes", "binary": "/wA=", "decimal": "-123.45",
		"list":  `[1,"two","three","2026-11-21T09:00:00Z","NaN",null,"4"]`,
		"table": `{"a":1,"b":{"list":[true]}}`, "empty": "{}", "strange": "(1+2i)",
	}, msg.Metadata)
	assert.Equal(t, []byte{0, 0xff}, []byte(msg.Payload))
	assert.Empty(t, msg.UUID)
}

func TestUnmarshalTellsOfTheDelivery(t *testing.T) {
	msg, err := rabbitmq.Marshaler{}.Unmarshal(amqp091.Delivery{
		Redelivered: true, MessageId: "an-id",
		Headers: amqp091.Table{
			"x-delivery-count": int64(3), "CC": []any{"elsewhere"},
			"x-death": []any{
				amqp091.Table{"count": int64(2), "queue": "a"}, amqp091.Table{"count": int64(5), "queue": "b"}, "what",
			},
			"_millrace_amqp_redelivered": "forged", "_millrace_else": "forged",
		},
	})
	require.NoError(t, err)
	assert.Equal(t, "an-id", msg.UUID)
	assert.True(t, rabbitmq.Redelivered(msg))
	assert.Equal(t, message.Metadata{
		rabbitmq.RedeliveredKey: "true", rabbitmq.DeliveryCountKey: "3", rabbitmq.DeathCountKey: "7",
		rabbitmq.MessageIDKey:             "an-id",
		rabbitmq.HeaderPrefix + "x-death": `[{"count":2,"queue":"a"},{"count":5,"queue":"b"},"what"]`,
	}, msg.Metadata)
}

func TestUnmarshalTakesNoDeliveryFromThePublisher(t *testing.T) {
	msg, err := rabbitmq.Marshaler{}.Unmarshal(amqp091.Delivery{Headers: amqp091.Table{
		rabbitmq.RedeliveredKey: "true", rabbitmq.DeliveryCountKey: "9", "x-delivery-count": "9", "x-death": "text",
	}})
	require.NoError(t, err)
	assert.False(t, rabbitmq.Redelivered(msg))
	assert.Equal(t, message.Metadata{rabbitmq.HeaderPrefix + "x-death": "text"}, msg.Metadata)
}

func TestUnmarshalFindsTheUUID(t *testing.T) {
	for name, c := range map[string]struct {
		marshaler rabbitmq.Marshaler
		delivery  amqp091.Delivery
		want      string
	}{
		"header":         {delivery: uuidHeader("_watermill_message_uuid", "a"), want: "a"},
		"header first":   {delivery: withID(uuidHeader("_watermill_message_uuid", "a"), "b"), want: "a"},
		"message-id":     {delivery: withID(amqp091.Delivery{}, "b"), want: "b"},
		"empty header":   {delivery: withID(uuidHeader("_watermill_message_uuid", ""), "b"), want: "b"},
		"number":         {delivery: uuidHeader("_watermill_message_uuid", int64(7)), want: "7"},
		"other header":   {rabbitmq.Marshaler{UUIDHeader: "id"}, uuidHeader("id", "c"), "c"},
		"neither of two": {},
	} {
		t.Run(name, func(t *testing.T) {
			msg, err := c.marshaler.Unmarshal(c.delivery)
			require.NoError(t, err)
			assert.Equal(t, c.want, msg.UUID)
			assert.NotContains(t, msg.Metadata, "id")
			assert.NotContains(t, msg.Metadata, "_watermill_message_uuid")
		})
	}
}

func uuidHeader(key string, value any) amqp091.Delivery {
	return amqp091.Delivery{Headers: amqp091.Table{key: value}}
}

func withID(d amqp091.Delivery, id string) amqp091.Delivery {
	d.MessageId = id
	return d
}

func TestMarshalSetsWhatOthersLookFor(t *testing.T) {
	msg := message.NewMessage("an-id", []byte("payload"))
	msg.Metadata.Set("key", "value")
	before := time.Now()
	p, err := rabbitmq.Marshaler{}.Marshal(msg)
	require.NoError(t, err)
	assert.WithinRange(t, p.Timestamp, before, time.Now())
	p.Timestamp = time.Time{}
	assert.Equal(t, amqp091.Publishing{
		Headers:   amqp091.Table{"_watermill_message_uuid": "an-id", "key": "value"},
		MessageId: "an-id", DeliveryMode: amqp091.Persistent, Body: []byte("payload"),
	}, p)
	p, err = rabbitmq.Marshaler{Transient: true, UUIDHeader: "id"}.Marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, amqp091.Transient, p.DeliveryMode)
	assert.Equal(t, amqp091.Table{"id": "an-id", "key": "value"}, p.Headers)
}

func TestMarshalTakesNothingAndMuch(t *testing.T) {
	p, err := rabbitmq.Marshaler{}.Marshal(&message.Message{})
	require.NoError(t, err)
	assert.Equal(t, amqp091.Table{"_watermill_message_uuid": ""}, p.Headers)
	long := strings.Repeat("x", 300)
	p, err = rabbitmq.Marshaler{}.Marshal(message.NewMessage(long, nil))
	require.NoError(t, err)
	assert.Equal(t, amqp091.Table{"_watermill_message_uuid": long}, p.Headers)
	assert.Empty(t, p.MessageId, "amqp091 would cut it off")
}

// TestMarshalKeepsAFieldNamedLikeTheHeaderOfTheUUID or refuses it: the UUID has that header.
func TestMarshalKeepsAFieldNamedLikeTheHeaderOfTheUUID(t *testing.T) {
	for header, m := range map[string]rabbitmq.Marshaler{"_watermill_message_uuid": {}, "id": {UUIDHeader: "id"}} {
		msg := message.NewMessage("an-id", nil)
		msg.Metadata.Set(header, "another")
		_, err := m.Marshal(msg)
		require.ErrorContains(t, err, "metadata "+header)
		msg.Metadata.Set(header, "an-id")
		p, err := m.Marshal(msg)
		require.NoError(t, err)
		received, err := m.Unmarshal(amqp091.Delivery{Headers: p.Headers, MessageId: p.MessageId})
		require.NoError(t, err)
		received.UUID = "of the next step"
		p, err = m.Marshal(received)
		require.NoError(t, err, "a message that came from RabbitMQ goes on, also with another UUID")
		assert.Equal(t, "of the next step", p.Headers[header])
	}
}

func TestMarshalLeavesTheDeliveryBehind(t *testing.T) {
	received, err := rabbitmq.Marshaler{}.Unmarshal(amqp091.Delivery{
		Redelivered: true, MessageId: "an-id",
		Headers: amqp091.Table{
			"x-delivery-count": int64(3), "x-death": []any{amqp091.Table{"count": int64(1)}},
			"x-first-death-queue": "a", "key": "value", "CC": []any{"elsewhere"}, "x-acquired-count": int64(4),
			"x-last-death-reason": "rejected", "x-custom": "a user's", "x-delay": int64(5), "x-stream-filter-value": "eu",
		},
	})
	require.NoError(t, err)
	received.Metadata.Set("_millrace_of_another_broker", "x")
	for name := range received.Metadata {
		assert.NotContains(t, []string{"x-acquired-count", "x-first-death-queue", "x-last-death-reason"}, name)
	}
	assert.Equal(t, "a", received.Metadata[rabbitmq.HeaderPrefix+"x-first-death-queue"])
	for _, name := range []string{"x-acquired-count", "x-first-death-queue", "x-last-death-exchange", "x-opt-rabbitmq-sent-time"} {
		received.Metadata.Set(name, "kept by another marshaler")
	}
	p, err := rabbitmq.Marshaler{}.Marshal(received)
	require.NoError(t, err)
	assert.Equal(t, amqp091.Table{
		"_watermill_message_uuid": "an-id", "key": "value", "x-custom": "a user's", "x-delay": "5", "x-stream-filter-value": "eu",
	}, p.Headers)
}

// FuzzMarshalerAndWatermills sends a message by each marshaler to the other.
func FuzzMarshalerAndWatermills(f *testing.F) {
	f.Add("id", "key", "value", []byte("payload"))
	f.Add("", "", "", []byte(nil))
	f.Add("\xff", "\x00", "é\xff\x00", []byte{0xff})
	f.Fuzz(func(t *testing.T, id, key, value string, payload []byte) {
		sent := message.NewMessage(id, payload)
		sent.Metadata.Set(key, value)
		ours, theirs := rabbitmq.Marshaler{}, amqp.DefaultMarshaler{}
		p, err := ours.Marshal(sent)
		if err != nil || len(p.Headers) != 2 {
			return // a key of ours or RabbitMQ's
		}
		received, err := theirs.Unmarshal(amqp091.Delivery{Headers: p.Headers, MessageId: p.MessageId, Body: p.Body})
		require.NoError(t, err)
		require.True(t, received.Equals(sent), "%#v", received)
		p, err = theirs.Marshal(sent)
		require.NoError(t, err)
		received, err = ours.Unmarshal(amqp091.Delivery{Headers: p.Headers, Body: p.Body})
		require.NoError(t, err)
		require.True(t, received.Equals(sent), "%#v", received)
	})
}
