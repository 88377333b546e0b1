package watermillsql_test

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// In tables that watermill-sql made on MySQL, names that differ in case only are one name. Two such
// groups would share an offset, and each would miss what the other acks.
func TestGroupsThatWouldShareAnOffset(t *testing.T) {
	db := testdb.On(t, "mysql")
	require.NoError(t, stockSubscriber(t, db).SubscribeInitialize("orders"))
	p := newPublisher(t, db, "orders")
	for _, uuid := range []string{"1", "2"} {
		require.NoError(t, p.Publish("orders", message.NewMessage(uuid, []byte(`{}`))))
	}
	upper := newSubscriber(t, db, "A")
	receive(t, subscribe(t, upper, "orders")).Ack()
	require.NoError(t, upper.Close())

	lower := newSubscriber(t, db, "a")
	_, err := lower.Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, `consumer group "a" would share the offset of group "A"`)
	_, statement, named := strings.Cut(err.Error(), "ALTER TABLE")
	require.True(t, named)
	exec(t, db, "ALTER TABLE"+statement)
	assert.Equal(t, "1", receive(t, subscribe(t, lower, "orders")).UUID, "it begins at the first message")
}
