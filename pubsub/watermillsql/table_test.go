package watermillsql_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Names by which two topics would share a table are refused wherever a topic is named, and
// the longest name that is not has tables of its own.
func TestTopics(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		most := map[string]int{"postgres": 45, "mysql": 46}[db.Dialect]
		long := strings.Repeat("x", most)
		p := newPublisher(t, db, long, "A.b-c_d:$e", "offsets", "a", "A")
		s := newSubscriber(t, db, "group")
		for _, c := range []struct{ topic, problem string }{
			{long + "x", `topics that begin alike would share a table; choose a shorter name`},
			{"", `topic "": it is empty`},
			{"a/b", `topic "a/b": it may have only ASCII letters, digits and -$:._`},
			{"a\"b", `it may have only`},
			{"a`b", `it may have only`},
			{"übung", `it may have only`},
			{"offsets_a", `its table would be the table of offsets of topic "a"`},
		} {
			err := p.Publish(c.topic, newMessage("1"))
			require.ErrorIs(t, err, outbox.ErrPermanent)
			_, subscribeErr := s.Subscribe(t.Context(), c.topic)
			_, schemaErr := watermillsql.Schema(db.Dialect, c.topic)
			for _, err := range []error{
				err, subscribeErr, schemaErr, s.SubscribeInitialize(c.topic), p.Initialize(t.Context(), "orders", c.topic),
			} {
				require.ErrorIs(t, err, watermillsql.ErrTopic)
				require.ErrorContains(t, err, c.problem)
			}
		}
		err := p.Initialize(t.Context(), "a/b", "", "offsets_a")
		for _, problem := range []string{"ASCII", "empty", "offsets"} {
			require.ErrorContains(t, err, problem, "all at once")
		}
		for _, topic := range []string{long, "A.b-c_d:$e", "offsets", "a", "A"} {
			publish(t, p, topic, topic)
			messages := subscribe(t, s, topic)
			msg := receive(t, messages)
			assert.Equal(t, topic, msg.UUID)
			msg.Ack()
		}
	})
}

// PostgreSQL lets one of two processes fail that make a table at the same time, or two
// whose long names begin alike, since the names of their indexes are cut off.
func TestInitializeAtOnce(t *testing.T) {
	const processes, rounds = 9, 5
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db)
		stock := stockSubscriber(t, db)
		for round := range rounds {
			same := fmt.Sprint("same", round)
			topics := []string{same}
			start := make(chan struct{})
			var all sync.WaitGroup
			for n := range processes {
				own := fmt.Sprint(strings.Repeat("x", 41), round, "-", n)
				topics = append(topics, own)
				all.Go(func() {
					<-start
					assert.NoError(t, p.Initialize(t.Context(), own, same))
				})
			}
			all.Go(func() {
				<-start
				_ = stock.SubscribeInitialize(same) // which may fail
			})
			close(start)
			all.Wait()
			for _, topic := range topics {
				assert.NoError(t, p.Publish(topic, message.NewMessage("1", []byte(`{}`))))
			}
		}
	})
}

func TestTablesAreMissing(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db)
		s := newSubscriber(t, db, "group")
		err := p.Publish("orders", newMessage("1"))
		require.ErrorIs(t, err, watermillsql.ErrNoTable)
		require.ErrorContains(t, err, `publish to topic "orders": table watermill_orders: the table is missing: call Initialize`)
		require.NotErrorIs(t, err, outbox.ErrPermanent, "the relay can go on once it is there")
		_, err = s.Subscribe(t.Context(), "orders")
		require.ErrorIs(t, err, watermillsql.ErrNoTable)

		schema, err := watermillsql.Schema(db.Dialect, "orders", "invoices")
		require.NoError(t, err)
		for statement := range strings.SplitSeq(strings.TrimSpace(schema), ";\n") {
			exec(t, db, statement)
		}
		publish(t, p, "orders", "1")
		publish(t, p, "invoices", "1")
		receive(t, subscribe(t, s, "orders")).Ack()

		exec(t, db, `DROP TABLE watermill_orders`)
		require.Error(t, p.Publish("orders", newMessage("1")))
		require.ErrorIs(t, p.Publish("orders", newMessage("1")), watermillsql.ErrNoTable, "the table is looked at again")

		exec(t, db, `CREATE TABLE watermill_orders (id INTEGER)`)
		err = p.Initialize(t.Context(), "orders")
		require.ErrorContains(t, err, "table watermill_orders has no column")
		require.NotErrorIs(t, err, watermillsql.ErrNoTable)
	})
}

// A service may lack the right to make tables where they are there.
func TestInitializeMakesNothingTwice(t *testing.T) {
	db := testdb.On(t, "postgres")
	newPublisher(t, db, "orders")
	other := db.Open(t, testdb.Params("default_transaction_read_only", "on"))
	newPublisher(t, other, "orders")
	p, err := watermillsql.NewPublisher(other.DB, watermillsql.Config{})
	require.NoError(t, err)
	require.ErrorContains(t, p.Initialize(t.Context(), "invoices"), "read-only")
}
