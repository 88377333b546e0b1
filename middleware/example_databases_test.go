package middleware_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A service with a database for each region serves each by itself: a topic, a subscriber, a router and a Store of its
// own, and where there is an outbox, a relay. A database that is down then hinders no other.
func ExampleInbox_severalDatabases() {
	folder, err := os.MkdirTemp("", "millrace")
	check(err)
	defer func() { _ = os.RemoveAll(folder) }()
	logger := watermill.NopLogger{}

	// serve runs the service for one region. In production a goroutine calls it for each region, again and again.
	serve := func(region string, work func(broker message.Publisher, db *sqlx.DB)) {
		ctx := context.Background()
		broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger) // closed by the router
		db := sqlx.MustConnect("sqlite", "file:"+filepath.Join(folder, region+".db")+
			"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
		db.MustExec(`CREATE TABLE orders (id TEXT)`)
		store, err := inbox.NewStore(db, inbox.Config{})
		check(err)
		check(store.Migrate(ctx))
		router, err := message.NewRouter(message.RouterConfig{}, logger)
		check(err)
		millrace.Inbox{Store: store}.AddTo(router)
		router.AddConsumerHandler("orders", "orders."+region, broker, func(msg *message.Message) error {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(msg.Context(), `INSERT INTO orders VALUES (?)`, msg.UUID)
			return err
		})
		go func() {
			<-router.Running()
			work(broker, db)
			check(router.Close())
		}()
		check(router.Run(ctx))
		check(store.Close(ctx))
		check(db.Close())
	}
	for _, region := range []string{"eu", "us"} {
		serve(region, func(broker message.Publisher, db *sqlx.DB) {
			for range 2 { // the broker delivers the order twice
				check(broker.Publish("orders."+region, message.NewMessage("order-of-"+region, nil)))
			}
			var ids []string
			check(db.Select(&ids, `SELECT id FROM orders`))
			fmt.Println(region, ids)
		})
	}
	// Output:
	// eu [order-of-eu]
	// us [order-of-us]
}
