package admin_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

// changed is the message that brings account-7 to a version.
func changed(version int64) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), nil)
	outbox.Stamp(msg, "account-7", version)
	return msg
}

// Version 2 is lost for good, and version 3 waits for it. An operator brings the account to
// version 2 by hand, says so, and version 3 is delivered.
func ExampleAdmin_SetVersion() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	sub, err := pubsub.Durable{Store: store, Consumer: "accounts"}.Decorate(broker)
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddMiddleware(millrace.VersionGate{}.Middleware)
	applied := make(chan string, 2)
	router.AddConsumerHandler("accounts", "changes", sub, func(msg *message.Message) error {
		applied <- msg.Metadata.Get(inbox.VersionField)
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(ctx) }()
	<-router.Running()
	check(broker.Publish("changes", changed(1)))
	check(broker.Publish("changes", changed(3)))
	fmt.Println("applied", <-applied)

	held, err := admin.New(store).Find(ctx, admin.Filter{Status: admin.Held}, 0, 100)
	check(err)
	for _, m := range held {
		fmt.Printf("held: version %d %s\n", m.Version, m.Reason)
	}
	account := inbox.Aggregate{Consumer: "accounts", ID: "account-7"}
	by := admin.Operator{Name: "ann", Reason: "version 2 is lost; its effect was posted by hand"}
	check(admin.New(store).SetVersion(ctx, account, 2, by))
	fmt.Println("applied", <-applied)

	check(router.Close())
	check(<-stopped)
	version, err := store.Version(ctx, account)
	check(err)
	fmt.Println("version", version)
	// Output:
	// applied 1
	// held: version 3 waits for version 2 of aggregate "account-7"
	// applied 3
	// version 3
}

// A rebuild in place: stop the handlers, empty the projection, forget what was seen, and
// have the stream delivered from its beginning.
func ExampleAdmin_Forget() {
	ctx := context.Background()
	db, store, done := exampleStore(inbox.Config{}, `CREATE TABLE history (version TEXT)`)
	defer done()
	handler := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(
		millrace.VersionGate{OnGap: inbox.GapFail}.Middleware(
			func(msg *message.Message) ([]*message.Message, error) {
				tx, err := inbox.Tx(msg.Context())
				if err != nil {
					return nil, err
				}
				_, err = tx.ExecContext(msg.Context(), `INSERT INTO history VALUES (?)`, msg.Metadata.Get(inbox.VersionField))
				return nil, err
			}))
	stream := []*message.Message{changed(1), changed(2)}
	deliver := func() {
		for _, msg := range stream {
			_, err := handler(msg.Copy())
			check(err)
		}
		var versions []string
		check(db.Select(&versions, `SELECT version FROM history ORDER BY rowid`))
		fmt.Println(versions)
	}

	deliver()
	_, err := db.Exec(`DELETE FROM history`)
	check(err)
	deliver() // nothing happens: all of it was seen

	check(admin.New(store).Forget(ctx, "accounts", 0, admin.Operator{Name: "ann", Reason: "a new column"}))
	deliver()
	// Output:
	// [1 2]
	// []
	// [1 2]
}
