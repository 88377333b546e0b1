// Command deduplicator counts the messages that Watermill's Deduplicator takes for copies of
// others, and those whose handler failed and that it takes for handled. See docs/upstream.md.
package main

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

const messages = 20_000

func main() {
	handled := 0
	handler := (&middleware.Deduplicator{}).Middleware(func(*message.Message) ([]*message.Message, error) {
		handled++
		return nil, nil
	})
	for n := range messages {
		payload := fmt.Appendf(nil, `{"order_id":%d,"status":"paid"}`, n)
		if _, err := handler(message.NewMessage(watermill.NewUUID(), payload)); err != nil {
			panic(err)
		}
	}
	fmt.Println(messages-handled, "of", messages, "messages, no two alike, are taken for copies")

	succeeded := 0
	failing := true
	handler = (&middleware.Deduplicator{}).Middleware(func(*message.Message) ([]*message.Message, error) {
		if failing {
			return nil, errors.New("the database is down")
		}
		succeeded++
		return nil, nil
	})
	msg := message.NewMessage(watermill.NewUUID(), []byte("pay"))
	_, first := handler(msg)
	failing = false
	_, second := handler(msg.Copy()) // the redelivery
	fmt.Printf("a handler failed with %q; the redelivery got %v and ran %d handlers\n", first, second, succeeded)
}
