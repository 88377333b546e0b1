package shadow_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// filled runs the handler with each delivery, and then records the message in the memory of
// an inbox that will be enforced later. It is for handlers that return no messages.
func filled(later millrace.Inbox) message.HandlerMiddleware {
	later.OnCollision = inbox.CollisionDrop // nothing is to be parked yet
	record := later.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := inbox.Tx(msg.Context())
		return nil, err
	})
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				if _, failed := record(msg); failed != nil {
					log.Printf("message %s was handled, and its copies are not known: %v", msg.UUID, failed)
				}
			}
			return produced, err
		}
	}
}

// From shadow to enforcement. While the memory is filled, each delivery has its effect, as
// ever. When the inbox is enforced it knows what was handled before: the copy that comes then
// has none.
func Example_fill() {
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	defer func() { check(db.Close()) }()
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(context.Background()))
	defer func() { check(store.Close(context.Background())) }()

	later := millrace.Inbox{Store: store, Consumer: "billing", Key: inbox.ByMetadata("order_id")}
	bill := func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("bill", msg.Metadata.Get("order_id"))
		return nil, nil
	}
	deliver := func(h message.HandlerFunc, uuid, order string) {
		msg := message.NewMessage(uuid, nil)
		msg.Metadata.Set("order_id", order)
		_, err := h(msg)
		check(err)
	}

	filling := filled(later)(bill)
	deliver(filling, "1", "order-7")
	deliver(filling, "2", "order-7")

	fmt.Println("enforced:")
	enforced := later.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if _, err := inbox.Tx(msg.Context()); err != nil {
			return nil, err
		}
		return bill(msg)
	})
	deliver(enforced, "3", "order-7")
	deliver(enforced, "4", "order-8")
	// Output:
	// bill order-7
	// bill order-7
	// enforced:
	// bill order-8
}
