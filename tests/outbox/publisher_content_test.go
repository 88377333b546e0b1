package outbox_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// contentBodies: what a broker gets is what was published, byte for byte.
var contentBodies = []testdb.Body{
	{
		Name: "content", Run: content,
		Why: "UUID, metadata and payload reach the broker as they were, nil and empty too",
	},
}

// everyByte is a payload that is no text.
func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// contents are messages that something on the way could change.
func contents() []*message.Message {
	made := func(uuid string, payload message.Payload, md message.Metadata) *message.Message {
		m := message.NewMessage(uuid, payload)
		m.Metadata = md
		return m
	}
	type md = message.Metadata
	return []*message.Message{
		made("nil payload", nil, md{"a": "b"}),
		made("empty payload", []byte{}, md{"a": "b"}),
		made("nil metadata", []byte("x"), nil),
		made("empty metadata", []byte("x"), md{}),
		made("nothing at all", nil, nil),
		made("every byte", everyByte(), md{}),
		made("a long payload", []byte(strings.Repeat("\x00\xff'\\", 100<<10)), md{}),
		made("text", []byte(`{"käse": "🧀", "quote": "'"}`), md{
			"quotes": `"'` + "`" + `\"\\'`, "käse": "🧀 \U0010ffff", "zero": "a\x00b", "lines": "a\r\n\tb\u2028\u2029\x7f\u0085",
			"html": "<a href='?a&b'>", "": "no name", "no value": "", " spaces ": " \u00a0 ", "replacement": "\ufffd",
			"nul\x00in name": "x", "combining": "e\u0301 é", "null": "null", "long": strings.Repeat("ä", 30_000),
		}),
		made(" ünïcode 🧾 'id'; DROP TABLE millrace_outbox; -- ", []byte("x"), md{}),
		made(strings.Repeat("ä", 2048), []byte("a UUID of 4096 bytes"), md{}),
	}
}

func content(t *testing.T, db *testdb.DB) {
	connections := map[string][][]string{
		"postgres": {
			nil, {"default_query_exec_mode", "simple_protocol"}, {"default_query_exec_mode", "exec"},
			{"default_query_exec_mode", "cache_describe"},
		},
		"mysql": {
			nil, {"interpolateParams", "true", "clientFoundRows", "true"},
			{"interpolateParams", "true", "sql_mode", "'NO_BACKSLASH_ESCAPES'"},
		},
		"sqlite": {nil},
	}
	o := newOffice(t, db)
	for _, params := range connections[db.Dialect] {
		o.each(behaviour{fmt.Sprint("reaches the broker by a connection with ", params), func(o *office) {
			pool := db.Open(t, testdb.Params(params...))
			o.db = pool
			o.out = o.publisher()
			topic := " Aufträge 🧾 'x'; -- "
			want := contents()
			require.NoError(o, outbox.InTx(o.Context(), pool.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				return o.publishIn(ctx, topic, want)
			}))
			require.NoError(o, outbox.InTx(o.Context(), pool.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				for _, m := range want {
					require.NoError(o, o.publishIn(ctx, topic, []*message.Message{m}), "alone as together")
				}
				return nil
			}))
			sent := make(map[string][]*message.Message)
			for _, m := range o.relayed(2 * len(want)) {
				sent[m.UUID] = append(sent[m.UUID], m)
			}
			for _, m := range want {
				require.Len(o, sent[m.UUID], 2, m.UUID)
				for _, got := range sent[m.UUID] {
					assert.True(o, maps.Equal(m.Metadata, got.Metadata), "%s: %v", m.UUID, got.Metadata) // what was nil may be empty
					assert.Equal(o, m.Payload, got.Payload, m.UUID)
				}
			}
			for _, got := range o.broker.topics {
				assert.Equal(o, topic, got)
			}
		}})
	}
}

// A connection to MySQL that cannot carry each character would change what is stored and what is sent.
func TestALossyConnectionIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	o := newOffice(t, db)
	for _, charset := range []string{"utf8", "latin1"} {
		pool := db.Open(t, testdb.Params("charset", charset))
		out := rig.NewOutbox(t, pool.DB, outbox.Config{Standalone: true})
		const says = "set charset=utf8mb4"
		require.ErrorContains(o, out.Publish("orders", contents()[0]), says)
		own := rig.NewOutbox(t, db.DB, outbox.Config{Standalone: true})
		require.NoError(o, own.Publish("orders", contents()[0]))
		for _, out := range []*outbox.Publisher{out, own} {
			err := outbox.InTx(o.Context(), pool.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				m := contents()[0]
				m.SetContext(ctx)
				return out.Publish("orders", m)
			})
			require.ErrorContains(o, err, says)
			tx, err := pool.DB.Beginx()
			require.NoError(o, err)
			m := contents()[0]
			m.SetContext(outbox.WithTx(o.Context(), tx))
			require.ErrorContains(o, out.Publish("orders", m), says)
			require.NoError(o, tx.Rollback())
		}
		relay, err := outbox.NewRelay(pool.DB, o.broker, outbox.RelayConfig{})
		require.NoError(o, err)
		require.ErrorContains(o, relay.Run(o.Context()), says)
	}
}

// relayed has a relay send what is stored, which is so many messages, and returns them.
func (o *office) relayed(want int) []*message.Message {
	o.Helper()
	relay := o.relay()
	o.broker.await(o, fmt.Sprintf("%d messages are sent", want), func(sent []string) bool { return len(sent) >= want })
	require.NoError(o, relay.stop())
	assert.Empty(o, o.stored())
	require.Len(o, o.broker.sent, want)
	return o.broker.sent
}

func FuzzContent(f *testing.F) {
	for _, m := range contents() {
		for name, value := range m.Metadata {
			f.Add(m.UUID, "orders", name, value, []byte(m.Payload))
		}
	}
	f.Add("", "", "_millrace_x", "\xff", []byte(nil))
	db := testdb.On(f, "sqlite")
	out := rig.NewOutbox(f, db.DB, outbox.Config{Standalone: true, OrderKey: outbox.ByMetadata("key")})
	require.NoError(f, out.Migrate(f.Context()))
	broker := newMemoryBroker()
	relay, err := outbox.NewRelay(db.DB, broker, outbox.RelayConfig{})
	require.NoError(f, err)
	start(f, relay)
	f.Fuzz(func(t *testing.T, uuid, topic, name, value string, payload []byte) {
		m := message.NewMessage(uuid, payload)
		m.Metadata.Set(name, value)
		before := broker.total()
		if out.Publish(topic, m) != nil {
			return // refused, and so not stored: the next run would find it
		}
		broker.await(t, "the message is sent", func(sent []string) bool { return len(sent) > before })
		broker.mu.Lock()
		defer broker.mu.Unlock()
		require.Len(t, broker.sent, before+1)
		got := broker.sent[before]
		assert.Equal(t, topic, broker.topics[before])
		assert.Equal(t, uuid, got.UUID)
		assert.Equal(t, m.Payload, got.Payload)
		if strings.HasPrefix(name, "_millrace_") {
			assert.Empty(t, got.Metadata)
		} else {
			assert.Equal(t, m.Metadata, got.Metadata)
		}
	})
}
