package outbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// refusalBodies: what cannot be stored gets an error that names the message and the reason.
var refusalBodies = []testdb.Body{
	{Name: "wrong messages", Why: "refused before anything is stored, by an error that names message and field", Run: func(t *testing.T, db *testdb.DB) {
		o := newOffice(t, db, func(c *outbox.Config) {
			c.OrderKey = func(_ string, m *message.Message) (string, error) {
				if key := m.Metadata.Get("key"); key != "fail" {
					return key, nil
				}
				return "", errRefused
			}
		})
		o.each(behaviour{"are refused, and the transaction goes on", func(o *office) {
			require.NoError(o, outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				for name, c := range wrongOnes() {
					msgs := carried(ctx, "good", "wrong", "good too")
					c.change(msgs[1])
					if c.topic != "orders" {
						msgs = msgs[1:2]
					}
					err := o.out.Publish(c.topic, msgs...)
					for _, say := range c.says {
						assert.ErrorContains(o, err, say, name)
					}
				}
				err := o.out.Publish("orders", carried(ctx, "good")[0], nil)
				assert.ErrorContains(o, err, "message 2 of 2, nil,")
				assert.ErrorContains(o, err, "the message is nil")
				return o.put(ctx, "after")
			}))
			assert.Equal(o, []string{"after"}, o.stored())
		}})
	}},
	{Name: "a database that takes nothing", Why: "the error says what to do", Run: func(t *testing.T, db *testdb.DB) {
		o := newOffice(t, db)
		both := func(o *office, pool *sqlx.DB, out *outbox.Publisher, want error) {
			o.Helper()
			err := out.Publish("orders", carried(o.Context(), "a")...)
			require.ErrorIs(o, err, want, "alone")
			assert.ErrorContains(o, err, `message "a" to topic "orders"`)
			err = out.Publish("orders", heavy(o.Context(), "a", "b")...)
			require.ErrorIs(o, err, want, "alone, by several statements")
			assert.Equal(o, 1, strings.Count(err.Error(), want.Error()), "said once: %v", err)
			err = outbox.InTx(o.Context(), pool, func(ctx context.Context, _ *sqlx.Tx) error {
				return out.Publish("orders", carried(ctx, "a")...)
			})
			require.ErrorIs(o, err, want, "in a transaction")
		}
		o.each(
			behaviour{"because the tables are missing", func(o *office) {
				out := o.publisher(standalone, func(c *outbox.Config) { c.TablePrefix = "elsewhere_" })
				both(o, o.db.DB, out, outbox.ErrNotMigrated)
				_, err := out.Backlog(o.Context(), outbox.BacklogOptions{})
				require.ErrorIs(o, err, outbox.ErrNotMigrated)
				require.NoError(o, out.Migrate(o.Context()), "the way out")
				require.NoError(o, out.Publish("orders", carried(o.Context(), "a")...))
				assert.Empty(o, o.stored(), "two outboxes in one database do not meet")
			}},
			behaviour{"because it is read-only", func(o *office) {
				pool := o.db.ReadOnly(o)
				out := rig.NewOutbox(o, pool.DB, outbox.Config{Standalone: true})
				both(o, pool.DB, out, outbox.ErrReadOnly)
			}},
			behaviour{"because its pool is closed", func(o *office) {
				pool := o.db.Open(o)
				out := rig.NewOutbox(o, pool.DB, outbox.Config{Standalone: true})
				require.NoError(o, pool.Close())
				both(o, pool.DB, out, outbox.ErrUnavailable)
			}},
		)
	}},
}

// wrong is a message, good but for what change does, and what the error must say of it.
type wrong struct {
	topic  string
	change func(m *message.Message)
	says   []string
}

func wrongOnes() map[string]wrong {
	uuid := func(id string) func(*message.Message) { return func(m *message.Message) { m.UUID = id } }
	field := func(name, value string) func(*message.Message) {
		return func(m *message.Message) { m.Metadata.Set(name, value) }
	}
	same := func(*message.Message) {}
	const notText = "must be UTF-8 without zero bytes"
	long := strings.Repeat("x", 4097)
	return map[string]wrong{
		"empty topic":           {"", same, []string{`"wrong"`, "the topic is empty"}},
		"zero byte in topic":    {"a\x00b", same, []string{`"wrong"`, "the topic", notText}},
		"topic not UTF-8":       {"\xff", same, []string{`"wrong"`, "the topic", notText}},
		"long topic":            {long, same, []string{`"wrong"`, "the topic has 4097 bytes, more than 4096"}},
		"empty UUID":            {"orders", uuid(""), []string{"message 2 of 3", "the UUID is empty"}},
		"zero byte in UUID":     {"orders", uuid("a\x00"), []string{"message 2 of 3", "the UUID", notText}},
		"UUID not UTF-8":        {"orders", uuid("\xc3\x28"), []string{"message 2 of 3", "the UUID", notText}},
		"long UUID":             {"orders", uuid(long), []string{"the UUID has 4097 bytes"}},
		"zero byte in key":      {"orders", field("key", "\x00"), []string{`"wrong"`, "the order key", notText}},
		"key not UTF-8":         {"orders", field("key", "\xff"), []string{`"wrong"`, "the order key", notText}},
		"long key":              {"orders", field("key", long), []string{`"wrong"`, "the order key has 4097 bytes"}},
		"key that is not found": {"orders", field("key", "fail"), []string{`"wrong"`, "Config.OrderKey: refused"}},
		"type not UTF-8":        {"orders", field("name", "\xff"), []string{`"wrong"`, "the event type", notText}},
		"long type":             {"orders", field("ce_type", long), []string{`"wrong"`, "the event type has 4097 bytes"}},
		"value not UTF-8": {"orders", field("sig", "\xff\xfe"), []string{
			`"wrong"`, `the metadata field "sig" is not UTF-8`, "base64",
		}},
		"field name not UTF-8": {"orders", field("s\xff", "x"), []string{
			`"wrong"`, `the metadata field "s\xff" is not UTF-8`,
		}},
	}
}

// MariaDB takes 16 MiB at once, MySQL 64, and cuts the connection of who sends more, or, if the driver
// sends it in pieces, refuses it. What is large is named, and others are not stopped.
func TestAMessageLargerThanThePacketIsNamed(t *testing.T) {
	t.Parallel()
	o := newOffice(t, testdb.On(t, "mysql"))
	large := o.db.Count(t, `SELECT @@max_allowed_packet`) + 1<<20
	for _, params := range [][]string{nil, {"maxAllowedPacket", "0"}} {
		t.Run(strings.Join(params, " "), func(t *testing.T) {
			pool := o.db.Open(t, testdb.Params(params...))
			out := rig.NewOutbox(t, pool.DB, outbox.Config{Standalone: true})
			tooLarge := func(ctx context.Context) {
				msgs := carried(ctx, "small", "large", "small too")
				msgs[1].Payload = make([]byte, large)
				err := out.Publish("orders", msgs...)
				require.ErrorIs(t, err, outbox.ErrTooLarge)
				require.NotErrorIs(t, err, outbox.ErrUnavailable)
				assert.ErrorContains(t, err, `message "large"`)
				assert.ErrorContains(t, err, "max_allowed_packet")
			}
			tooLarge(t.Context())
			err := outbox.InTx(t.Context(), pool.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				tooLarge(ctx)
				return nil
			})
			t.Logf("a caller that commits: %v", err) // an error where the connection was cut
			assert.Empty(t, o.stored())
			require.NoError(t, out.Publish("orders", carried(t.Context(), "small")...))
			_, err = pool.ExecContext(t.Context(), `DELETE FROM millrace_outbox`)
			require.NoError(t, err)
		})
	}
}

// A driver that puts arguments into the statement's text escapes some of their bytes, unless that makes it larger than the
// driver's own limit. What is not too large otherwise can be stored by a driver that does not.
func TestAMessageWhoseTextIsLargerThanThePacketIsNamed(t *testing.T) {
	t.Parallel()
	o := newOffice(t, testdb.On(t, "mysql"))
	large := o.db.Count(t, `SELECT @@max_allowed_packet`) / 10 * 6
	for _, c := range []struct {
		params []string
		named  bool
	}{
		{nil, false},
		{[]string{"interpolateParams", "true"}, true},
		{[]string{"interpolateParams", "true", "maxAllowedPacket", "0"}, false}, // it asks the server
	} {
		t.Run(strings.Join(c.params, " "), func(t *testing.T) {
			out := rig.NewOutbox(t, o.db.Open(t, testdb.Params(c.params...)).DB, outbox.Config{Standalone: true})
			msgs := carried(t.Context(), "large")
			msgs[0].Payload = make([]byte, large)
			err := out.Publish("orders", msgs...)
			if !c.named {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, outbox.ErrTooLarge)
			require.NotErrorIs(t, err, outbox.ErrUnavailable)
			assert.ErrorContains(t, err, `message "large"`)
			assert.ErrorContains(t, err, "max_allowed_packet")
		})
	}
}

// Whether the server gets to say why, before the connection is cut, is chance.
func TestALostConnectionIsNotThePacketsFault(t *testing.T) {
	t.Parallel()
	w := newWire(t, testdb.On(t, "mysql"))
	large := w.db.Count(t, `SELECT @@max_allowed_packet`) + 1<<20
	for _, c := range []struct {
		bytes       int
		want, other error
		pool        int
	}{
		{1, outbox.ErrUnavailable, outbox.ErrTooLarge, 0},
		{2 << 20, outbox.ErrUnavailable, outbox.ErrTooLarge, 0},
		{large, outbox.ErrTooLarge, outbox.ErrUnavailable, 0},
		{2 << 20, outbox.ErrUnavailable, outbox.ErrTooLarge, 1}, // the transaction has the only connection
		{large, outbox.ErrTooLarge, outbox.ErrUnavailable, 1},
	} {
		w.db.SetMaxOpenConns(c.pool)
		_ = outbox.InTx(t.Context(), w.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
			msgs := carried(ctx, "one")
			msgs[0].Payload = make([]byte, c.bytes)
			w.watch(1, func() error { return faults.ErrLost })
			err := w.out.Publish("orders", msgs...)
			w.seen()
			require.ErrorIs(t, err, c.want, "%d bytes", c.bytes)
			assert.NotErrorIs(t, err, c.other, "%d bytes", c.bytes)
			return err
		})
	}
}
