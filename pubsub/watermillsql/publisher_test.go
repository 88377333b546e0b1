package watermillsql_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// poolers are the settings of drivers that put values into statements, as behind a pooler.
var poolers = map[string][]testdb.Option{
	"postgres": {testdb.Params("default_query_exec_mode", "simple_protocol")},
	"mysql":    {testdb.Params("interpolateParams", "true")},
}

// What is read is what was published, byte by byte, on every way to the database.
func TestMessagesComeAsTheyWere(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		for name, options := range map[string][]testdb.Option{"prepared": nil, "pooler": poolers[db.Dialect]} {
			t.Run(name, func(t *testing.T) {
				db := db.Open(t, options...)
				p := newPublisher(t, db, name)
				messages := subscribe(t, newSubscriber(t, db, "group"), name)
				var bytesOf [256]byte
				for i := range bytesOf {
					bytesOf[i] = byte(i)
				}
				sent := []*message.Message{
					message.NewMessage("bytes", bytesOf[:]),
					message.NewMessage("json", []byte(`{"b": 1,  "a": 2}`)),
					message.NewMessage("empty", []byte{}),
					message.NewMessage(strings.Repeat("ü", 255), nil),
					{UUID: "no metadata", Payload: []byte("x")},
					message.NewMessage("metadata", nil),
				}
				sent[5].Metadata = message.Metadata{"a'\"\\\n<ü>": "\x00 \u2028 '", "": ""}
				require.NoError(t, p.Publish(name, sent...))
				for _, want := range sent {
					got := receive(t, messages)
					assert.Equal(t, want.UUID, got.UUID)
					assert.True(t, bytes.Equal(want.Payload, got.Payload), "%q", got.Payload)
					assert.Equal(t, len(want.Metadata), len(got.Metadata))
					for key, value := range want.Metadata {
						assert.Equal(t, value, got.Metadata[key])
					}
					got.Metadata.Set("key", "value") // which panics for nil
					got.Ack()
				}
			})
		}
	})
}

// watermill-sql's own publisher stores null for metadata that is nil, and its own
// subscriber then gives a message whose Metadata.Set panics.
func TestMetadataIsNeverNil(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders")
		exec(t, db, map[string]string{
			"postgres": `INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES
				('null', 'x', 'null', pg_current_xact_id()), ('none', 'x', NULL, pg_current_xact_id())`,
			"mysql": `INSERT INTO watermill_orders (uuid, payload, metadata) VALUES ('null', 'x', 'null'), ('none', 'x', NULL)`,
		}[db.Dialect])
		require.NoError(t, p.Publish("orders", &message.Message{UUID: "nil"}))
		messages := subscribe(t, newSubscriber(t, db, "group"), "orders")
		for _, uuid := range []string{"null", "none", "nil"} {
			msg := receive(t, messages)
			assert.Equal(t, uuid, msg.UUID)
			assert.NotNil(t, msg.Metadata)
			msg.Ack()
		}
		var stored string
		require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT metadata FROM watermill_orders WHERE uuid = 'nil'`))
		assert.Equal(t, `{}`, stored, "others read the table too")
	})
}

// A producer that writes by SQL may store metadata that is no object of strings. Its rows are delivered, and do not stop the topic.
func TestMetadataThatIsNotText(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders")
		stored := []struct {
			json string
			want message.Metadata
		}{
			{`{"version": 3, "urgent": true, "tags": [1, "a"], "none": null, "name": "ü"}`,
				message.Metadata{"version": "3", "urgent": "true", "tags": `[1, "a"]`, "none": "", "name": "ü"}},
			{`[1, "a"]`, message.Metadata{watermillsql.MetadataKey: `[1, "a"]`}},
			{`"text"`, message.Metadata{watermillsql.MetadataKey: `"text"`}},
		}
		for n, s := range stored {
			exec(t, db, fmt.Sprintf(map[string]string{
				"postgres": `INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES ('%d', 'x', '%s', pg_current_xact_id())`,
				"mysql":    `INSERT INTO watermill_orders (uuid, payload, metadata) VALUES ('%d', 'x', '%s')`,
			}[db.Dialect], n, s.json))
		}
		publish(t, p, "orders", "good")
		messages := subscribe(t, newSubscriber(t, db, "group", batch(2)), "orders")
		for n, s := range stored {
			msg := receive(t, messages)
			assert.Equal(t, fmt.Sprint(n), msg.UUID)
			assert.Equal(t, s.want, msg.Metadata)
			msg.Ack()
		}
		assert.Equal(t, "good", receive(t, messages).UUID)
	})
}

func TestPublishNothing(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders")
		require.NoError(t, p.Publish("orders"))
		require.ErrorIs(t, p.Publish("a/b"), watermillsql.ErrTopic)
		require.ErrorContains(t, p.Publish("orders", newMessage("1"), nil), "message 2 of 2 is nil")
		assert.Equal(t, 0, rows(t, db, "orders"))
	})
}

// More messages than a statement takes, and more bytes than a packet, are still published
// in order, all or none.
func TestPublishIsAllOrNothing(t *testing.T) {
	const many = 22_000 // ×3 is above 65,535
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders", "large")
		msgs := make([]*message.Message, many)
		for n := range msgs {
			msgs[n] = newMessage(fmt.Sprintf("%06d", n))
		}
		refused := fmt.Sprintf("%06d", many-1)
		exec(t, db, `ALTER TABLE watermill_orders ADD CONSTRAINT refuse CHECK (uuid <> '`+refused+`')`)
		require.Error(t, p.Publish("orders", msgs...))
		assert.Equal(t, 0, rows(t, db, "orders"), "none of the messages before the one that was refused")

		require.NoError(t, p.Publish("orders", msgs[:many-1]...))
		assert.Equal(t, many-1, rows(t, db, "orders"))
		var disordered int
		require.NoError(t, db.GetContext(t.Context(), &disordered, map[string]string{
			"postgres": `SELECT COUNT(*) FROM (SELECT uuid, LAG(uuid) OVER (ORDER BY transaction_id, "offset") AS before
				FROM watermill_orders) AS o WHERE uuid < before`,
			"mysql": "SELECT COUNT(*) FROM (SELECT uuid, LAG(uuid) OVER (ORDER BY `offset`) AS earlier" +
				" FROM watermill_orders) AS o WHERE uuid < earlier",
		}[db.Dialect]))
		assert.Equal(t, 0, disordered)

		megabytes := make([]*message.Message, packet(t, db)>>20+4)
		for n := range megabytes {
			megabytes[n] = message.NewMessage(fmt.Sprint(n), make([]byte, 1<<20))
		}
		require.NoError(t, p.Publish("large", megabytes...), "together they exceed max_allowed_packet")
		assert.Equal(t, len(megabytes), rows(t, db, "large"))
	})
}

// Drivers and servers keep every statement that they have prepared.
func TestFewStatementsArePrepared(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		pool, inserts := faults.Open(t, db), map[int]bool{} // by their rows
		newPublisher(t, db, "orders")
		p, err := watermillsql.NewPublisher(pool.DB, watermillsql.Config{})
		require.NoError(t, err)
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "(uuid, payload") {
				inserts[1+strings.Count(call, "), (")] = true
			}
			return nil
		}})
		var sent []string
		for _, n := range []int{501, 502, 601, 602, 701, 702, 801, 802, 901, 902} {
			msgs := make([]*message.Message, n)
			for i := range msgs {
				msgs[i] = newMessage(fmt.Sprintf("%d of %d", i, n))
				sent = append(sent, msgs[i].UUID)
			}
			require.NoError(t, p.Publish("orders", msgs...))
		}
		assert.Len(t, inserts, 5+2, "hundreds, and the rest")
		var stored []string
		require.NoError(t, db.SelectContext(t.Context(), &stored, map[string]string{
			"postgres": `SELECT uuid FROM watermill_orders ORDER BY transaction_id, "offset"`,
			"mysql":    "SELECT uuid FROM watermill_orders ORDER BY `offset`",
		}[db.Dialect]))
		assert.Equal(t, sent, stored)
	})
}

// packet is how much the server takes at once, or 16 MiB where it has no limit of that kind.
func packet(t *testing.T, db *testdb.DB) int {
	t.Helper()
	if db.Dialect != "mysql" {
		return 16 << 20
	}
	return db.Count(t, `SELECT @@max_allowed_packet`)
}

// What the table cannot take is told from an outage, and named.
func TestUnfitMessagesAreRefused(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders")
		binary := newMessage("binary")
		binary.Metadata = message.Metadata{"key": "\xff"}
		unfit := map[string]*message.Message{
			`its UUID is longer than the 255 characters of the column uuid`: newMessage(strings.Repeat("x", 256)),
			`its UUID is not text`:                    newMessage("a\x00b"),
			`message "\xff": its UUID is not text`:    newMessage("\xff"),
			`message "binary": its metadata "key" is`: binary,
		}
		if db.Dialect == "mysql" {
			limit := packet(t, db)
			unfit[fmt.Sprint("exceed the server's max_allowed_packet, ", limit)] = message.NewMessage("large", make([]byte, limit))
		}
		for problem, msg := range unfit {
			err := p.Publish("orders", msg)
			require.ErrorIs(t, err, outbox.ErrPermanent)
			require.ErrorContains(t, err, problem)
			var partial *outbox.PartialError
			require.False(t, errors.As(err, &partial))

			err = p.Publish("orders", newMessage("good"), msg)
			require.ErrorAs(t, err, &partial)
			require.Len(t, partial.Errors, 2)
			require.NotErrorIs(t, partial.Errors[0], outbox.ErrPermanent)
			require.ErrorContains(t, partial.Errors[0], `message "good" was not stored, as another message of the call cannot be`)
			require.ErrorContains(t, partial.Errors[0], problem)
			require.ErrorIs(t, partial.Errors[1], outbox.ErrPermanent)
		}
		assert.Equal(t, 0, rows(t, db, "orders"))
	})
}

// watermill-sql's own settings make tables of JSON and short UUIDs. They can be used, and
// the error that tells what they do not take names the statement that changes it.
func TestTablesOfWatermillSQL(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		stock := stockSubscriber(t, db)
		require.NoError(t, stock.SubscribeInitialize("orders"))
		p := newPublisher(t, db, "orders")
		document := func(uuid string) *message.Message { return message.NewMessage(uuid, []byte(`{"a":1}`)) }
		require.NoError(t, p.Publish("orders", document("json")))
		for _, pooler := range poolers[db.Dialect] {
			require.NoError(t, newPublisher(t, db.Open(t, pooler)).Publish("orders", document("pooler")))
		}

		for column, msg := range map[string]*message.Message{
			"uuid": document(strings.Repeat("x", 37)), "payload": newMessage("bytes"),
		} {
			err := p.Publish("orders", msg)
			require.ErrorContains(t, err, "ALTER TABLE")
			_, statement, _ := strings.Cut(err.Error(), "ALTER TABLE")
			exec(t, db, "ALTER TABLE"+statement)
			rig.Eventually(t, "it is published after the statement for "+column, func() bool { // once the driver forgets what it prepared
				return p.Publish("orders", msg) == nil
			})
		}

		received := map[string][]byte{}
		messages, err := stock.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		for range 4 {
			msg := receive(t, messages)
			received[msg.UUID] = msg.Payload
			msg.Ack()
		}
		assert.JSONEq(t, `{"a":1}`, string(received["json"]))
		assert.Equal(t, newMessage("").Payload, message.Payload(received["bytes"]), "to a subscriber of its own as well")
	})
}

// stockSubscriber is one of watermill-sql, in the group that it has by default: that without a name.
func stockSubscriber(t *testing.T, db *testdb.DB) *wmsql.Subscriber {
	t.Helper()
	config := wmsql.SubscriberConfig{
		PollInterval:  5 * time.Millisecond,
		SchemaAdapter: wmsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
	}
	if db.Dialect == "mysql" {
		config.SchemaAdapter, config.OffsetsAdapter = wmsql.DefaultMySQLSchema{}, wmsql.DefaultMySQLOffsetsAdapter{}
	}
	s, err := wmsql.NewSubscriber(db.DB, config, silence)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// Publish does not hang where watermill-sql's does, which takes no context.
func TestPublishEnds(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		publish(t, newPublisher(t, db, "orders"), "orders", "before")
		p, err := watermillsql.NewPublisher(db.DB, watermillsql.Config{Timeout: 300 * time.Millisecond})
		require.NoError(t, err)

		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		for _, s := range map[string][]string{
			"postgres": {`BEGIN`, `LOCK TABLE watermill_orders`}, "mysql": {`LOCK TABLES watermill_orders WRITE`},
		}[db.Dialect] {
			_, err = conn.ExecContext(t.Context(), s)
			require.NoError(t, err)
		}
		require.ErrorIs(t, p.Publish("orders", newMessage("1")), context.DeadlineExceeded)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		msg := newMessage("2")
		msg.SetContext(ctx)
		require.ErrorIs(t, p.Publish("orders", msg), context.Canceled)
	})
}

func TestPublishAfterClose(t *testing.T) {
	p := newPublisher(t, testdb.On(t, "postgres"), "orders")
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Publish("orders", newMessage("1")), watermillsql.ErrClosed)
}
