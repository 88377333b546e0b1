// Command consumer handles a message that comes twice.
package main

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/middleware"
)

func main() {
	leases := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	handled := 0
	handle := middleware.Deduplicate{Claims: leases, Consumer: "billing", Key: inbox.ByUUID()}.Middleware(
		func(*message.Message) ([]*message.Message, error) {
			handled++
			return nil, nil
		})
	for range 2 {
		msg := message.NewMessage("order-1", nil)
		if _, err := handle(msg); err != nil {
			panic(err)
		}
		msg.Ack()
	}
	fmt.Printf("handled %d of 2\n", handled)
}
