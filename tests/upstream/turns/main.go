// Command turns counts the messages that watermill-sql's subscriber passes over on MySQL and
// MariaDB. Give it the DSN of an empty database. See docs/upstream.md.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql" // registers "mysql"
)

const publishers, messages = 16, 1_000

func main() {
	db := must(sql.Open("mysql", os.Args[1]))
	subscriber := must(watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
		SchemaAdapter: watermillsql.DefaultMySQLSchema{}, OffsetsAdapter: watermillsql.DefaultMySQLOffsetsAdapter{},
		InitializeSchema: true, PollInterval: time.Millisecond,
	}, watermill.NopLogger{}))
	in := must(subscriber.Subscribe(context.Background(), "numbers"))
	publisher := must(watermillsql.NewPublisher(db,
		watermillsql.PublisherConfig{SchemaAdapter: watermillsql.DefaultMySQLSchema{}}, watermill.NopLogger{}))

	var publishing sync.WaitGroup
	for range publishers {
		publishing.Go(func() {
			for range messages {
				if err := publisher.Publish("numbers", message.NewMessage(watermill.NewUUID(), []byte(`{}`))); err != nil {
					log.Fatal(err)
				}
			}
		})
	}
	seen := map[string]bool{}
	for quiet := false; !quiet; {
		select {
		case msg := <-in:
			seen[msg.UUID] = true
			msg.Ack()
		case <-time.After(20 * time.Second):
			quiet = true
		}
	}
	publishing.Wait()
	fmt.Println(publishers*messages-len(seen), "of", publishers*messages, "messages are in the table and were never delivered")
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
