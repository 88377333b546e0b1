package middleware_test

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A handler that sends mail has no transaction. Its message is remembered once it
// succeeded, and not before.
func ExampleDeduplicate() {
	claims, err := inbox.NewMemoryLeases(inbox.MemoryLeasesConfig{}) // or store.Leases(), or redisleases.New
	if err != nil {
		fmt.Println(err)
		return
	}
	attempts := 0
	sendMail := func(msg *message.Message) ([]*message.Message, error) {
		if attempts++; attempts == 1 {
			return nil, errors.New("the mail server does not answer")
		}
		fmt.Printf("mail for order %s\n", msg.Payload)
		return nil, nil
	}
	// In a service: router.AddMiddleware(millrace.Deduplicate{Claims: claims}.Middleware)
	handler := millrace.Deduplicate{Claims: claims, Consumer: "mailer"}.Middleware(sendMail)

	for delivery := 1; delivery <= 4; delivery++ {
		msg := message.NewMessage("79a3b1a8-52a3-4ab4-a5f8-1a1e2ec4eb29", []byte("4711"))
		if _, err := handler(msg); err != nil {
			fmt.Printf("delivery %d: nacked\n", delivery)
			continue
		}
		fmt.Printf("delivery %d: acked\n", delivery)
	}
	// Output:
	// delivery 1: nacked
	// mail for order 4711
	// delivery 2: acked
	// delivery 3: acked
	// delivery 4: acked
}
