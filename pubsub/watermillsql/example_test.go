package watermillsql_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/testdb"
)

// An order is published twice, and the account pays once. It prints
//
//	balance: 90
func Example() {
	ctx := context.Background()
	db, err := sqlx.Open("pgx", exampleDSN)
	check(err)
	_, err = db.Exec(`CREATE TABLE account AS SELECT 100 AS balance`)
	check(err)

	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(ctx))
	publisher, err := watermillsql.NewPublisher(db, watermillsql.Config{})
	check(err)
	check(publisher.Initialize(ctx, "orders"))
	subscriber, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{ConsumerGroup: "billing"})
	check(err)

	order := message.NewMessage("order-1", []byte("10 EUR"))
	check(publisher.Publish("orders", order, order))
	check(publisher.Publish("orders", message.NewMessage("the end", nil)))

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	end := make(chan struct{})
	router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		if msg.UUID == "the end" {
			close(end)
			return nil
		}
		_, err = tx.ExecContext(msg.Context(), `UPDATE account SET balance = balance - 10`)
		return err
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(ctx) }()
	<-end
	check(router.Close()) // closes the subscriber too
	check(<-stopped)
	check(store.Close(ctx))

	var balance int
	check(db.Get(&balance, `SELECT balance FROM account`))
	fmt.Println("balance:", balance)
	check(publisher.Close())
	check(db.Close())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// exampleDSN names the database of the example.
var exampleDSN string

func TestExample(t *testing.T) {
	exampleDSN = testdb.On(t, "postgres").DSN
	read, write, err := os.Pipe()
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = write
	t.Cleanup(func() { os.Stdout = stdout })
	Example()
	require.NoError(t, write.Close())
	printed, err := io.ReadAll(read)
	require.NoError(t, err)
	assert.Equal(t, "balance: 90\n", string(printed))
}
