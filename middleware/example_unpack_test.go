package middleware_test

import (
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A middleware outside the inbox that changes a message gives it back as it came, so that a
// Retry further out does not have it changed twice.
func ExampleInbox_unpacking() {
	unpack := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			packed := msg.Payload
			defer func() { msg.Payload = packed }()
			unpacked, err := base64.StdEncoding.DecodeString(string(packed))
			if err != nil {
				return nil, fmt.Errorf("unpack: %w", err)
			}
			msg.Payload = unpacked
			return next(msg)
		}
	}
	failing := unpack(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Printf("the handler has %s\n", msg.Payload)
		return nil, errors.New("the first attempt fails")
	})
	msg := message.NewMessage("1", []byte("YW4gb3JkZXI="))
	_, err := failing(msg)
	fmt.Println(err)
	fmt.Printf("the next attempt begins with %s\n", msg.Payload)
	// Output:
	// the handler has an order
	// the first attempt fails
	// the next attempt begins with YW4gb3JkZXI=
}
