package interop_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// By default watermill-sql takes payloads for JSON.
func TestWatermillSQL(t *testing.T) {
	db := testdb.On(t, "postgres")
	schema := wmsql.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }}
	publisher, err := wmsql.NewPublisher(db.DB, wmsql.PublisherConfig{
		SchemaAdapter: schema, AutoInitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	deliver(t, db, broker{
		topic: freshTopic(), publisher: publisher,
		subscriber: func() message.Subscriber {
			s, err := wmsql.NewSubscriber(db.DB, wmsql.SubscriberConfig{
				ConsumerGroup: "billing",
				PollInterval:  5 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 50 * time.Millisecond,
				SchemaAdapter: schema, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		},
	})
}
