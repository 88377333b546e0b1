package migrating_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// orders is a service that places orders, and tells of them.
type orders struct {
	*testing.T
	db     *sqlx.DB
	schema wmsql.SchemaAdapter
	out    *outbox.Publisher
}

// throughForwarder tells by Watermill's forwarder: its publisher is made anew for each
// transaction.
func (s *orders) throughForwarder(ctx context.Context, id string) error {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := s.place(ctx, tx, id); err != nil {
		return err
	}
	stored, err := wmsql.NewPublisher(tx, wmsql.PublisherConfig{SchemaAdapter: s.schema}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	publisher := forwarder.NewPublisher(stored, forwarder.PublisherConfig{ForwarderTopic: "to_forward"})
	if err := publisher.Publish("orders", placed(id)); err != nil {
		return err
	}
	return tx.Commit()
}

// throughOutbox tells by the outbox, whose publisher is made once.
func (s *orders) throughOutbox(ctx context.Context, id string) error {
	return outbox.InTx(ctx, s.db, func(ctx context.Context, tx *sqlx.Tx) error {
		if err := s.place(ctx, tx, id); err != nil {
			return err
		}
		msg := placed(id)
		msg.SetContext(ctx) // says in which transaction it is stored
		return s.out.Publish("orders", msg)
	})
}

func placed(id string) *message.Message {
	msg := message.NewMessage(id, []byte(`{"order":"`+id+`"}`))
	msg.Metadata.Set("name", "OrderPlaced")
	return msg
}

var errSoldOut = errors.New("sold out")

func (s *orders) place(ctx context.Context, tx *sqlx.Tx, id string) error {
	if _, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO orders (id) VALUES (?)`), id); err != nil {
		return err
	}
	if id[len(id)-1] == '5' {
		return errSoldOut // and nobody must hear of it
	}
	return nil
}

// waitsForForwarder counts what the forwarder, whose consumer group is named, has not sent.
var waitsForForwarder = map[string]string{
	"postgres": `
		SELECT COUNT(*) FROM "watermill_to_forward" m WHERE NOT EXISTS (
			SELECT 1 FROM "watermill_offsets_to_forward" o WHERE o.consumer_group = 'forwarder'
			AND (m.transaction_id, m."offset") <= (o.last_processed_transaction_id, o.offset_acked))`,
	"mysql": `
		SELECT COUNT(*) FROM watermill_to_forward m WHERE NOT EXISTS (
			SELECT 1 FROM watermill_offsets_to_forward o WHERE o.consumer_group = 'forwarder'
			AND m.offset <= o.offset_acked)`,
}

// TestFromTheForwarder plays the steps of docs/migrating.md: forwarder and relay side by side,
// then publishers of both kinds, then the end of the forwarder.
func TestFromTheForwarder(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} { // watermill-sql/v3 has no other
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, dialect)
			s, broker := newOrders(t, db), &rig.Publisher{}
			stopForwarder := s.forward(broker)
			s.placeAll("old", s.throughForwarder)
			s.relay(broker)
			s.placeAll("mixed", s.throughForwarder, s.throughOutbox)
			s.placeAll("new", s.throughOutbox)
			rig.Eventually(s, "it is done", func() bool {
				left := db.Count(t, waitsForForwarder[dialect])
				return left == 0
			})
			stopForwarder()
			s.placeAll("last", s.throughOutbox)

			var want []string
			require.NoError(t, db.SelectContext(t.Context(), &want, `SELECT id FROM orders`))
			require.Len(t, want, 45)
			var got map[string]bool
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				got = map[string]bool{}
				for _, msg := range broker.Messages() {
					got[msg.UUID] = true
				}
				for _, id := range want {
					assert.True(c, got[id], id)
				}
			}, rig.Patience, 20*time.Millisecond)
			assert.Len(t, got, len(want), "nothing of a transaction that was rolled back")
			for _, msg := range broker.Messages() {
				assert.Equal(t, "OrderPlaced", msg.Metadata["name"])
				assert.JSONEq(t, `{"order":"`+msg.UUID+`"}`, string(msg.Payload))
			}
		})
	}
}

func newOrders(t *testing.T, db *testdb.DB) *orders {
	t.Helper()
	s := &orders{T: t, db: db.DB, schema: wmsql.DefaultPostgreSQLSchema{}}
	if db.Dialect == "mysql" {
		s.schema = wmsql.DefaultMySQLSchema{}
	}
	db.Do(t, `CREATE TABLE orders (id VARCHAR(36) PRIMARY KEY)`)
	s.out = rig.NewOutbox(t, db.DB, outbox.Config{})
	require.NoError(t, s.out.Migrate(t.Context()))
	return s
}

// placeAll places ten orders in each of the ways, which work at the same time.
func (s *orders) placeAll(name string, ways ...func(context.Context, string) error) {
	s.Helper()
	var wait sync.WaitGroup
	for way, place := range ways {
		wait.Go(func() {
			for n := range 10 {
				id := fmt.Sprintf("%s-%d-%d", name, way, n)
				if err := place(s.Context(), id); !errors.Is(err, errSoldOut) {
					assert.NoError(s, err, id)
				}
			}
		})
	}
	wait.Wait()
}

// forward runs Watermill's forwarder.
func (s *orders) forward(broker message.Publisher) (stop func()) {
	s.Helper()
	var offsets wmsql.OffsetsAdapter = wmsql.DefaultPostgreSQLOffsetsAdapter{}
	if _, mysql := s.schema.(wmsql.DefaultMySQLSchema); mysql {
		offsets = wmsql.DefaultMySQLOffsetsAdapter{}
	}
	subscriber, err := wmsql.NewSubscriber(s.db, wmsql.SubscriberConfig{
		ConsumerGroup: "forwarder", SchemaAdapter: s.schema, OffsetsAdapter: offsets, InitializeSchema: true,
		PollInterval: 50 * time.Millisecond,
	}, watermill.NopLogger{})
	require.NoError(s, err)
	require.NoError(s, subscriber.SubscribeInitialize("to_forward"))
	f, err := forwarder.NewForwarder(subscriber, broker, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: "to_forward"})
	require.NoError(s, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.WithoutCancel(s.Context())) }()
	<-f.Running()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			assert.NoError(s, f.Close())
			assert.NoError(s, <-ended)
		})
	}
	s.Cleanup(stop)
	return stop
}

func (s *orders) relay(broker message.Publisher) {
	s.Helper()
	relay, err := outbox.NewRelay(s.db, broker, outbox.RelayConfig{})
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		assert.NoError(s, <-ended)
	})
}
