package watermillsql_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A driver that puts arguments into the statement's text escapes some of their bytes. MySQL cuts the connection if that
// makes the text larger than a packet, which looks like an outage, and a relay would wait for its end for ever.
func TestAMessageWhoseTextIsLargerThanAPacket(t *testing.T) {
	db := testdb.On(t, "mysql")
	limit := packet(t, db)
	for name, options := range map[string][]testdb.Option{"prepared": nil, "pooler": poolers["mysql"]} {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t, db.Open(t, options...), name)
			large := message.NewMessage("large", make([]byte, limit/10*6))
			require.NoError(t, p.Publish(name, newMessage("small"), large, newMessage("small too")))
			assert.Equal(t, 3, rows(t, db, name))
			assert.Equal(t, len(large.Payload), db.Count(t, fmt.Sprintf(`SELECT MAX(LENGTH(payload)) FROM watermill_%s`, name)))
		})
	}
}

// A statement has no more bytes than a packet of the server, which may be smaller than usual.
func TestAServerWithSmallPackets(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	db := testdb.At(t, "mysql", servers.MariaDB(t, fmt.Sprint("max-allowed-packet=", limit)).DSN())
	for name, options := range map[string][]testdb.Option{"prepared": nil, "pooler": poolers["mysql"]} {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t, db.Open(t, options...), name)
			var msgs []*message.Message
			for n := range 10 {
				msgs = append(msgs, message.NewMessage(fmt.Sprint(n), make([]byte, 400_000)))
			}
			require.NoError(t, p.Publish(name, msgs...))
			assert.Equal(t, len(msgs), rows(t, db, name))
			err := p.Publish(name, message.NewMessage("large", make([]byte, limit)))
			require.ErrorIs(t, err, outbox.ErrTooLarge)
			require.ErrorContains(t, err, `message "large"`)
			require.ErrorContains(t, err, "max_allowed_packet, 1048576")
		})
	}
}
