package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
)

// stored is what a message became in the outbox.
type stored struct {
	Key      *string `db:"order_key"`
	Metadata []byte  `db:"metadata"`
}

func (s stored) metadata(t *testing.T) (metadata map[string]string) {
	t.Helper()
	if len(s.Metadata) > 0 {
		require.NoError(t, json.Unmarshal(s.Metadata, &metadata))
	}
	return metadata
}

type mark struct{} // in the context of what store publishes

// store publishes msgs in a transaction and returns what became of them.
func store(t *testing.T, config outbox.Config, msgs ...*message.Message) (rows []stored, err error) {
	t.Helper()
	db := exampleDB(t.TempDir())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	out, err := outbox.NewPublisher(db, config)
	require.NoError(t, err)
	require.NoError(t, out.Migrate(t.Context()))
	err = outbox.InTx(t.Context(), db, func(ctx context.Context, _ *sqlx.Tx) error {
		for _, msg := range msgs {
			msg.SetContext(context.WithValue(ctx, mark{}, "the caller's"))
		}
		return out.Publish("accounts", msgs...)
	})
	require.NoError(t, db.Select(&rows, `SELECT order_key, metadata FROM millrace_outbox ORDER BY id`))
	return rows, err
}

func stampOf(metadata map[string]string) [2]string {
	return [2]string{metadata[outbox.AggregateField], metadata[outbox.VersionField]}
}

// What one end writes the other end reads.
func TestStampIsReadByTheInbox(t *testing.T) {
	assert.Equal(t, inbox.AggregateField, outbox.AggregateField)
	assert.Equal(t, inbox.VersionField, outbox.VersionField)
	for _, want := range []inbox.Version{{Aggregate: "account-7", Number: 1}, {Aggregate: "ä ", Number: 0}} {
		msg := message.NewMessage("u", nil)
		msg.Metadata = nil
		outbox.Stamp(msg, want.Aggregate, want.Number)
		rows, err := store(t, outbox.Config{OrderKey: outbox.ByAggregate()}, msg)
		require.NoError(t, err)
		require.Len(t, rows, 1)
		assert.Equal(t, &want.Aggregate, rows[0].Key, "the versions of an aggregate stay in order")

		arrived := message.NewMessage("u", nil)
		arrived.Metadata = rows[0].metadata(t)
		got, err := inbox.VersionFromMetadata()(arrived)
		require.NoError(t, err)
		assert.Equal(t, []inbox.Version{want}, got)
	}
}

func TestByAggregateWithoutAStamp(t *testing.T) {
	rows, err := store(t, outbox.Config{OrderKey: outbox.ByAggregate()}, message.NewMessage("u", nil))
	require.NoError(t, err)
	assert.Nil(t, rows[0].Key)
}

func TestConfigStamps(t *testing.T) {
	config := outbox.Config{
		OrderKey: func(topic string, msg *message.Message) (string, error) { // sees what was stamped
			assert.Equal(t, "the caller's", msg.Context().Value(mark{}))
			return outbox.ByAggregate()(topic, msg)
		},
		Stamp: func(topic string, msg *message.Message) (string, int64, error) {
			switch string(msg.Payload) {
			case "none":
				return "", 7, nil
			case "negative":
				return "a", -1, nil
			case "fails":
				return "", 0, errors.New("not today")
			}
			return topic + "/" + string(msg.Payload), 3, nil
		},
	}
	one := message.NewMessage("u1", []byte("ann"))
	one.Metadata.Set("color", "red")
	two := message.NewMessage("u2", []byte("none"))
	two.Metadata.Set("color", "blue")
	bare := message.NewMessage("u3", []byte("bob"))
	bare.Metadata = nil
	rows, err := store(t, config, one, two, bare)
	require.NoError(t, err)
	require.Len(t, rows, 3)
	assert.Equal(t, "accounts/ann", *rows[0].Key)
	assert.Equal(t, [2]string{"accounts/ann", "3"}, stampOf(rows[0].metadata(t)))
	assert.Equal(t, "red", rows[0].metadata(t)["color"])
	assert.Equal(t, message.Metadata{"color": "red"}, one.Metadata, "the caller's message is left as it is")
	assert.Nil(t, rows[1].Key)
	assert.Equal(t, map[string]string{"color": "blue"}, rows[1].metadata(t))
	assert.Equal(t, [2]string{"accounts/bob", "3"}, stampOf(rows[2].metadata(t)))
	assert.Nil(t, bare.Metadata)

	for payload, problem := range map[string]string{
		"negative": `version -1 of aggregate "a" is negative`,
		"fails":    "stamp: not today",
	} {
		rows, err := store(t, config, message.NewMessage("u1", []byte("ann")), message.NewMessage("u2", []byte(payload)))
		require.ErrorContains(t, err, problem)
		assert.ErrorContains(t, err, "u2")
		assert.Empty(t, rows, "all or nothing")
	}
}

// A stamp that is there is left: whoever wrote it knew more of the message.
func TestConfigStampsWhatIsNotStamped(t *testing.T) {
	config := outbox.Config{Stamp: func(string, *message.Message) (string, int64, error) { return "other", 1, nil }}
	msg := message.NewMessage("u", nil)
	outbox.Stamp(msg, "ann", 4)
	rows, err := store(t, config, msg)
	require.NoError(t, err)
	assert.Equal(t, [2]string{"ann", "4"}, stampOf(rows[0].metadata(t)))
}

// Renamed knows its version, Noticed does not.
type (
	Renamed struct {
		Account string
		Version int64
	}
	Noticed struct{ What string }
)

func (r Renamed) AggregateID() string     { return r.Account }
func (r Renamed) AggregateVersion() int64 { return r.Version }

func TestMarshalerStampsWhatIsVersioned(t *testing.T) {
	marshaler := outbox.Marshaler{CommandEventMarshaler: cqrs.JSONMarshaler{}}
	for _, v := range []any{Renamed{"ann", 4}, &Renamed{"ann", 4}} {
		msg, err := marshaler.Marshal(v)
		require.NoError(t, err)
		assert.Equal(t, [2]string{"ann", "4"}, stampOf(msg.Metadata))
		assert.Equal(t, marshaler.Name(v), msg.Metadata.Get("name"), "what the marshaler inside writes stays")
		var back Renamed
		require.NoError(t, marshaler.Unmarshal(msg, &back))
		assert.Equal(t, Renamed{"ann", 4}, back)
	}
	for _, v := range []any{Noticed{"it"}, Renamed{"", 4}} {
		msg, err := marshaler.Marshal(v)
		require.NoError(t, err)
		assert.NotContains(t, msg.Metadata, outbox.AggregateField)
		assert.NotContains(t, msg.Metadata, outbox.VersionField)
	}
	_, err := marshaler.Marshal(Renamed{"ann", -1})
	require.ErrorContains(t, err, `version -1 of aggregate "ann" is negative`)
	_, err = marshaler.Marshal(func() {})
	require.Error(t, err)
}
