package tests_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Every message is published twice through watermill-sql's tables, two services of one
// consumer group take turns at them, and each handler fails once: watermill-sql delivers a
// nacked message again. Its deadline for an ack is 30 s, above the Timeout of the inbox.
// Its schema is the same on MariaDB, and SQLite is not among its databases.
func TestWatermillSQL(t *testing.T) {
	t.Parallel()
	const messages = 30
	b := newBed(t, testdb.On(t, "postgres"))
	pub := b.sqlPublisher()
	reader := b.sqlSubscriber("reader")
	require.NoError(t, reader.SubscribeInitialize("orders"))
	t.Cleanup(func() { assert.NoError(t, reader.Close()) })
	invoices, err := reader.Subscribe(t.Context(), "invoices")
	require.NoError(t, err)
	var sources []string
	for n := range messages {
		msg := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprint(n)))
		sources = append(sources, msg.UUID)
		require.NoError(t, pub.Publish("orders", msg, again(msg)))
	}

	var failed sync.Map
	h := func(msg *message.Message) ([]*message.Message, error) {
		if _, again := failed.LoadOrStore(msg.UUID, true); !again {
			return nil, errBoom
		}
		produced, err := invoice(msg)
		if err != nil {
			return nil, err
		}
		produced[0].Metadata.Set("for", msg.UUID)
		produced[0].Payload, err = json.Marshal(string(produced[0].Payload)) // the table takes JSON
		return produced, err
	}
	var routers []*message.Router
	for range 2 {
		router := rig.NewRouter(t)
		store := b.process()
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		router.AddPlugin(store.Plugin())
		router.AddHandler("billing", "orders", b.sqlSubscriber("billing"), "invoices", b.sqlPublisher(), h)
		go func() { assert.NoError(t, router.Run(context.WithoutCancel(t.Context()))) }()
		<-router.Running()
		t.Cleanup(func() {
			require.NoError(t, router.Close())
			require.NoError(t, store.Close(context.WithoutCancel(t.Context())))
		})
		routers = append(routers, router)
	}

	issued := map[string]string{} // by what for
	copies := 0
	rig.Eventually(b, "every invoice is read, and every copy handled", func() bool {
		for {
			select {
			case msg := <-invoices:
				msg.Ack()
				source := msg.Metadata["for"]
				if known, found := issued[source]; found {
					copies++
					assert.Equal(t, known, msg.UUID, "invoices for %s", source)
				}
				issued[source] = msg.UUID
				continue
			default:
			}
			return len(issued) == messages &&
				b.events.Count("completed")+b.events.Count("duplicate") >= 2*messages
		}
	})
	for _, router := range routers {
		require.NoError(t, router.Close())
	}
	t.Logf("%d messages doubled: %d runs, %d failed, %d duplicates, %d invoices published again as they were",
		messages, b.events.Count("completed"), b.events.Count("failed"), b.events.Count("duplicate"), copies)
	for _, source := range sources {
		assert.Equal(t, 1, b.effectsOf(source))
	}
	assert.Equal(t, messages, b.effects())
	assert.Equal(t, messages, b.events.Count("failed"))
	assert.Equal(t, messages, b.events.Count("completed"))
}

func (b *bed) sqlPublisher() *wmsql.Publisher {
	b.Helper()
	p, err := wmsql.NewPublisher(b.db.Open(b).DB.DB, wmsql.PublisherConfig{
		SchemaAdapter: wmsql.DefaultPostgreSQLSchema{},
	}, watermill.NopLogger{})
	require.NoError(b, err)
	return p
}

// sqlSubscriber is closed by whoever has it: twice at once would be a data race in watermill-sql.
func (b *bed) sqlSubscriber(group string) *wmsql.Subscriber {
	b.Helper()
	deadline := 30 * time.Second
	s, err := wmsql.NewSubscriber(b.db.Open(b).DB.DB, wmsql.SubscriberConfig{
		ConsumerGroup: group, AckDeadline: &deadline,
		PollInterval: 10 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 10 * time.Millisecond,
		SchemaAdapter: wmsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(b, err)
	return s
}
