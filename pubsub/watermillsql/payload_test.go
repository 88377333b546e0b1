package watermillsql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A payload column of a fixed length takes no more than that. Without strict mode, MySQL would cut
// off the rest and report success.
func TestPayloadsLongerThanTheColumn(t *testing.T) {
	db := testdb.On(t, "mysql")
	for mode, options := range map[string][]testdb.Option{"strict": nil, "lax": {testdb.Params("sql_mode", "''")}} {
		t.Run(mode, func(t *testing.T) {
			pool := db.Open(t, options...)
			for n, c := range []struct {
				kind string
				most int
			}{{"TINYBLOB", 255}, {"BLOB", 65_535}, {"VARBINARY(100)", 100}, {"TEXT", 65_535}, {"VARCHAR(100)", 100}} {
				topic := fmt.Sprint(mode, n)
				p := newPublisher(t, pool, topic)
				exec(t, db, fmt.Sprintf("ALTER TABLE watermill_%s MODIFY COLUMN payload %s", topic, c.kind))
				fits := message.NewMessage("fits", []byte(strings.Repeat("x", c.most)))
				require.NoError(t, p.Publish(topic, fits), c.kind)
				long := message.NewMessage("long", []byte(strings.Repeat("x", c.most+1)))
				err := p.Publish(topic, long)
				require.ErrorIs(t, err, outbox.ErrPermanent, c.kind)
				assert.Equal(t, 1, rows(t, db, topic))
				_, statement, named := strings.Cut(err.Error(), "ALTER TABLE")
				require.True(t, named)
				exec(t, db, "ALTER TABLE"+statement)
				require.NoError(t, p.Publish(topic, long), c.kind)
			}
		})
	}
}

// BINARY lengthens a payload that is shorter.
func TestNothingIsPublishedIntoBinary(t *testing.T) {
	db := testdb.On(t, "mysql")
	p := newPublisher(t, db, "orders")
	exec(t, db, `ALTER TABLE watermill_orders MODIFY COLUMN payload BINARY(200)`)
	err := p.Publish("orders", newMessage("1"))
	require.ErrorContains(t, err, "the column payload has type binary")
	require.NotErrorIs(t, err, outbox.ErrPermanent, "the relay can go on once the table is altered")
	assert.Equal(t, 0, rows(t, db, "orders"))
}

func TestAColumnOfJSONTakesNothingElse(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		require.NoError(t, stockSubscriber(t, db).SubscribeInitialize("orders"))
		p := newPublisher(t, db, "orders")
		for _, payload := range []string{"", "{", "\x00", "\"\xff\""} {
			err := p.Publish("orders", message.NewMessage("1", []byte(payload)))
			require.ErrorIs(t, err, outbox.ErrPermanent, "%q", payload)
			require.ErrorContains(t, err, "ALTER TABLE")
		}
		assert.Equal(t, 0, rows(t, db, "orders"))
		require.NoError(t, p.Publish("orders", message.NewMessage("1", []byte(`"ü"`))))
	})
}
