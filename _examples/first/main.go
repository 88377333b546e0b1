// Command first is the program of the README: a payment is delivered twice and posted once.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

func main() {
	ctx, logger := context.Background(), watermill.NopLogger{}
	db := sqlx.MustConnect("sqlite", "file:accounts.db?_txlock=immediate&_pragma=busy_timeout(10000)"+
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	db.MustExec(`CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER)`)
	db.MustExec(`INSERT INTO account VALUES (1, 100) ON CONFLICT DO NOTHING`)

	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(ctx))
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	router.AddConsumerHandler("accounts", "payments", broker, post)

	go func() {
		<-router.Running()
		for range 2 { // the broker delivers the payment twice
			check(broker.Publish("payments", message.NewMessage("payment-1", []byte("10"))))
		}
		check(router.Close())
	}()
	check(router.Run(ctx))
	check(store.Close(ctx))
	var balance int
	check(db.Get(&balance, `SELECT balance FROM account WHERE id = 1`))
	fmt.Println("balance:", balance)
	check(db.Close())
}

// post adds the payment to the balance, in the transaction that records the message as handled.
func post(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(msg.Context(), `UPDATE account SET balance = balance + ? WHERE id = 1`, string(msg.Payload))
	return err
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
