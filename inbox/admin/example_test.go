package admin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// exampleStore opens a SQLite file of its own, migrates it and runs the statements. The
// returned function removes it.
func exampleStore(config inbox.Config, statements ...string) (*sqlx.DB, *inbox.Store, func()) {
	dir, err := os.MkdirTemp("", "millrace-example-")
	check(err)
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	store, err := inbox.NewStore(db, config)
	check(err)
	check(store.Migrate(context.Background()))
	for _, s := range statements {
		_, err := db.Exec(s)
		check(err)
	}
	return db, store, func() {
		check(store.Close(context.Background()))
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

// Story tells what is known of one message: which consumers handled it, what they kept,
// which copies were dropped, what operators did.
func ExampleAdmin_Story() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{LogDropped: true})
	defer done()

	for _, consumer := range []string{"accounts", "mail"} {
		handler := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(
			func(msg *message.Message) ([]*message.Message, error) {
				return nil, inbox.SetResult(msg.Context(), consumer+" done")
			})
		for range 2 {
			_, err := handler(message.NewMessage("payment-1", nil))
			check(err)
		}
	}

	story, err := admin.New(store).Story(ctx, "payment-1")
	check(err)
	for _, c := range story.Claims {
		fmt.Printf("%s: completed %t, result %s\n", c.Consumer, c.Completed, c.Result)
	}
	for _, d := range story.Dropped {
		fmt.Printf("%s: a copy was dropped: %s\n", d.Consumer, d.Reason)
	}
	// Output:
	// accounts: completed true, result "accounts done"
	// mail: completed true, result "mail done"
	// accounts: a copy was dropped: settled
	// mail: a copy was dropped: settled
}
