package middleware_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

// What a handler stored in the outbox is found by the message that it handled.
func ExampleInbox_caused() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	defer func() { check(db.Close()) }()
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	check(store.Migrate(ctx))
	out, err := outbox.NewPublisher(db, outbox.Config{})
	check(err)

	handler := millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			invoice := message.NewMessage("invoice-17", nil)
			invoice.SetContext(msg.Context())
			return nil, out.Publish("invoices", invoice)
		})
	_, err = handler(message.NewMessage("order-17", nil))
	check(err)

	story, err := admin.New(store).Story(ctx, "order-17")
	check(err)
	for _, claim := range story.Claims {
		at := claim.ProcessedAt
		entries, err := out.CausedBy(ctx, claim.Consumer, "order-17", at, at.Add(25*time.Second)) // Inbox.Timeout
		check(err)
		for _, e := range entries {
			fmt.Println(claim.Consumer, "produced", e.UUID, "to", e.Topic, "which is", e.State)
		}
	}
	// Output:
	// billing produced invoice-17 to invoices which is PENDING
}
