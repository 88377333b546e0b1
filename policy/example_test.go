package policy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/policy"
)

// Three consumers of one topic. The broker delivers the second version of the document first,
// and all of it twice.
func ExamplePolicy_Wire() {
	db, cleanUp := exampleDB(`CREATE TABLE entries (text TEXT)`)
	defer cleanUp()
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(context.Background()))
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})

	rules, err := policy.Read(strings.NewReader(`
strict: true
defaults: {retention: 14d, window: 7d}
consumers:
  audit: {strategy: gate}    # every version, in order
  search: {strategy: latest} # the newest version
  cache: {strategy: none}    # each delivery
`), "policy.yaml")
	check(err)
	wired, err := rules.Wire(router, policy.Wiring{Store: store})
	check(err)

	done := make(chan string, 10)
	write := func(msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		entry := message.HandlerNameFromCtx(msg.Context()) + " " + string(msg.Payload)
		done <- entry
		_, err = tx.ExecContext(msg.Context(), `INSERT INTO entries (text) VALUES (?)`, entry)
		return err
	}
	for _, handler := range []string{"audit", "search"} {
		subscriber, err := wired.Subscriber(handler, broker) // audit needs a queue, and gets one
		check(err)
		router.AddConsumerHandler(handler, "documents", subscriber, write)
	}
	router.AddConsumerHandler("cache", "documents", broker, func(msg *message.Message) error {
		done <- "cache " + string(msg.Payload)
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	for _, version := range []string{"2", "2", "1", "1"} {
		msg := message.NewMessage("version-"+version, []byte(version))
		msg.Metadata.Set(inbox.AggregateField, "document-1")
		msg.Metadata.Set(inbox.VersionField, version)
		check(broker.Publish("documents", msg))
	}
	order := map[string][]string{}
	for range 7 {
		consumer, version, _ := strings.Cut(<-done, " ")
		order[consumer] = append(order[consumer], version)
	}
	check(router.Close())
	check(<-stopped)
	check(store.Close(context.Background()))
	for _, consumer := range []string{"audit", "search", "cache"} {
		fmt.Println(consumer, order[consumer])
	}
	// Output:
	// audit [1 2]
	// search [2]
	// cache [2 2 1 1]
}

// A typing error in a name is found when the router starts.
func ExamplePolicy_Wire_unknownHandler() {
	db, cleanUp := exampleDB()
	defer cleanUp()
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router.AddConsumerHandler("billing", "orders", broker, func(*message.Message) error { return nil })

	rules := policy.Policy{
		Defaults:  policy.Rules{Retention: policy.Duration(14 * 24 * time.Hour)},
		Consumers: map[string]policy.Rules{"biling": {Strategy: policy.Inbox}},
	}
	_, err = rules.Wire(router, policy.Wiring{Store: store})
	check(err)
	err = router.Run(context.Background())
	_, what, _ := strings.Cut(err.Error(), "consumers.")
	fmt.Println(what)
	// Output:
	// biling: the router has no such handler: if it is added later, or to another router, name it in Wiring.Absent; the router has billing: did you mean billing?
}

// exampleDB opens a SQLite file in which the statements were run, and returns what removes it.
func exampleDB(statements ...string) (*sqlx.DB, func()) {
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	for _, s := range statements {
		_, err := db.Exec(s)
		check(err)
	}
	return db, func() {
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
