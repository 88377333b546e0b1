package middleware_test

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
func changed(version int64, owner string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(owner))
	outbox.Stamp(msg, "account-7", version)
	return msg
}

// A projection whose changes come in the wrong order. The third is stored and acked; when
// the second is applied, it is delivered again and applied too.
func ExampleVersionGate() {
	db, store, done := exampleStore(`CREATE TABLE history (account TEXT, owner TEXT)`)
	defer done()
	logger := watermill.NopLogger{}
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)
	applied := make(chan string, 3)

	sub, err := pubsub.Durable{Store: store, Consumer: "accounts"}.Decorate(broker) // delivers what was stored
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddMiddleware(millrace.VersionGate{}.Middleware) // inside
	router.AddConsumerHandler("accounts", "changes", sub, func(msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(msg.Context(), `INSERT INTO history VALUES ('account-7', ?)`, string(msg.Payload))
		applied <- msg.UUID
		return err
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	check(broker.Publish("changes", changed(1, "ann")))
	check(broker.Publish("changes", changed(3, "cyd")))
	held, err := admin.New(store).Find(context.Background(), admin.Filter{Status: admin.Held}, 0, 10)
	check(err)
	fmt.Printf("version %d %s\n", held[0].Version, held[0].Reason)
	check(broker.Publish("changes", changed(2, "bob")))
	for range 3 {
		<-applied
	}
	check(router.Close())
	check(<-stopped)

	var owners []string
	check(db.Select(&owners, `SELECT owner FROM history ORDER BY rowid`))
	fmt.Println(owners)
	// Output:
	// version 3 waits for version 2 of aggregate "account-7"
	// [ann bob cyd]
}

// GapLatest is for a projection that shows the newest state: what comes too early is
// applied, and what it overtook is stale.
func ExampleVersionGate_latest() {
	db, store, done := exampleStore(`CREATE TABLE account (id TEXT PRIMARY KEY, owner TEXT)`)
	defer done()

	gate := millrace.VersionGate{OnGap: inbox.GapLatest}
	handler := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(gate.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(msg.Context(), `
				INSERT INTO account (id, owner) VALUES ('account-7', ?)
				ON CONFLICT (id) DO UPDATE SET owner = EXCLUDED.owner`, string(msg.Payload))
			return nil, err
		}))

	for _, msg := range []*message.Message{changed(1, "ann"), changed(3, "cyd"), changed(2, "bob")} {
		_, err := handler(msg)
		check(err)
	}
	var owner string
	check(db.Get(&owner, `SELECT owner FROM account`))
	fmt.Println(owner)
	// Output: cyd
}

// A projection whose rows carry their version needs no gate: the statement itself leaves
// out what is older. The inbox is not needed either.
func ExampleVersionGate_notNeeded() {
	db, _, done := exampleStore(`CREATE TABLE account (id TEXT PRIMARY KEY, version INTEGER, owner TEXT)`)
	defer done()

	versions := inbox.VersionFromMetadata()
	handler := func(msg *message.Message) error {
		v, err := versions(msg)
		if err != nil {
			return err
		}
		_, err = db.ExecContext(msg.Context(), `
			INSERT INTO account (id, version, owner) VALUES (?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version, owner = EXCLUDED.owner
			WHERE account.version < EXCLUDED.version`, v[0].Aggregate, v[0].Number, string(msg.Payload))
		return err
	}

	for _, msg := range []*message.Message{changed(1, "ann"), changed(3, "cyd"), changed(2, "bob")} {
		check(handler(msg))
	}
	var owner string
	check(db.Get(&owner, `SELECT owner FROM account`))
	fmt.Println(owner)
	// Output: cyd
}

// Starts names the messages that begin an aggregate anew: snapshots, which stand for every
// version before them.
func ExampleVersionGate_snapshot() {
	_, store, done := exampleStore()
	defer done()

	gate := millrace.VersionGate{
		OnGap:  inbox.GapFail,
		Starts: func(msg *message.Message) bool { return msg.Metadata.Get("name") == "AccountSnapshot" },
	}
	handler := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(gate.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			fmt.Printf("version %s: %s\n", msg.Metadata.Get(inbox.VersionField), msg.Payload)
			return nil, nil
		}))

	snapshot := changed(40, "ann")
	snapshot.Metadata.Set("name", "AccountSnapshot")
	for _, msg := range []*message.Message{snapshot, changed(41, "bob")} {
		_, err := handler(msg)
		check(err)
	}
	// Output:
	// version 40: ann
	// version 41: bob
}

// A rebuild beside the running projection: another epoch has seen nothing, so the stream is
// applied to a new table from its beginning, while the old table is kept up to date. When
// the new one has caught up, the service reads it, and the old consumer goes.
func ExampleInbox_epoch() {
	db, store, done := exampleStore(
		`CREATE TABLE accounts_v1 (owner TEXT)`,
		`CREATE TABLE accounts_v2 (owner TEXT)`)
	defer done()

	projection := func(epoch int, statement string) message.HandlerFunc {
		return millrace.Inbox{Store: store, Consumer: "accounts", Options: inbox.Options{Epoch: epoch}}.Middleware(
			millrace.VersionGate{OnGap: inbox.GapFail}.Middleware(
				func(msg *message.Message) ([]*message.Message, error) {
					tx, err := inbox.Tx(msg.Context())
					if err != nil {
						return nil, err
					}
					_, err = tx.ExecContext(msg.Context(), statement, string(msg.Payload))
					return nil, err
				}))
	}
	running := projection(0, `INSERT INTO accounts_v1 VALUES (?)`)
	rebuilt := projection(1, `INSERT INTO accounts_v2 VALUES (UPPER(?))`)

	stream := []*message.Message{changed(1, "ann"), changed(2, "bob")}
	for _, handler := range []message.HandlerFunc{running, rebuilt, running} {
		for _, msg := range stream {
			_, err := handler(msg.Copy())
			check(err)
		}
	}
	for _, query := range []string{`SELECT owner FROM accounts_v1`, `SELECT owner FROM accounts_v2`} {
		var owners []string
		check(db.Select(&owners, query))
		fmt.Println(owners)
	}
	// Output:
	// [ann bob]
	// [ANN BOB]
}
