package policy_test

import (
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/policy"
)

// Everything that is wrong with a file is found at once.
func ExampleRead() {
	const file = `
strict: true
defaults:
  window: 14d
consumers:
  mailer:
    strategy: durable
    retry: {attempt: 5}
  ledger:
    strategy: gate
    order_key: json:account.id
`
	_, err := policy.Read(strings.NewReader(file), "policy.yaml")
	fmt.Println(err)
	// Output:
	// policy.yaml:4: defaults.window: what is remembered for 7d may be delivered again for 14d (window), and would be handled twice: write a retention of at least 14d, better twice that
	// policy.yaml:8: consumers.mailer.retry.attempt: unknown field: did you mean attempts?
	// policy.yaml:11: consumers.ledger.order_key: messages that go straight to the handler are not ordered: write ack: stored beside it
}
