package middleware_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

// bank takes payments. It does nothing twice under one key.
type bank struct{ booked map[string]string }

func (b *bank) pay(_ context.Context, key string) (receipt []byte, err error) {
	if b.booked[key] == "" {
		b.booked[key] = fmt.Sprintf("receipt %d", len(b.booked)+1)
	}
	return []byte(b.booked[key]), nil
}

// A payment must not be made in the handler's transaction, which it would hold, nor twice. It is a
// step that Before does; the handler has the stored result.
func ExampleInbox_before() {
	db, store, done := exampleStore(`CREATE TABLE invoice (id TEXT)`)
	defer done()
	provider := &bank{booked: map[string]string{}}
	payment := inbox.Step{Name: "payment", Do: provider.pay, Idempotent: true}
	fails := true
	handle := millrace.Inbox{
		Store:    store,
		Consumer: "billing",
		Options: inbox.Options{
			Before: func(msg *message.Message) error {
				_, err := payment.Run(msg.Context())
				return err
			},
		},
	}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		receipt, err := payment.Run(msg.Context()) // what is stored
		if err != nil {
			return nil, err
		}
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(msg.Context(), `INSERT INTO invoice (id) VALUES (?)`, string(receipt))
		if err == nil && fails {
			fails, err = false, fmt.Errorf("something goes wrong after the payment")
		}
		return nil, err
	})

	for range 3 { // a failure, a redelivery, a duplicate
		_, err := handle(message.NewMessage("order-1", nil))
		fmt.Println("handled:", err == nil)
	}
	var invoices []string
	check(db.Select(&invoices, `SELECT id FROM invoice`))
	fmt.Println(invoices, len(provider.booked))
	// Output:
	// handled: false
	// handled: true
	// handled: true
	// [receipt 1] 1
}

// The id of the message, the version of its aggregate and the key of the provider together: changes
// of an account come twice and out of order, the inbox and the gate apply each once and in order,
// and what is to be told of it goes through the outbox to a sender of its own. Its id is made of
// the change, and is what the provider knows the call by.
func ExampleVersionGate_providerKey() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, store, done := exampleStore(`CREATE TABLE account (id TEXT)`)
	defer done()
	out, err := outbox.NewPublisher(db, outbox.Config{})
	check(err)
	intents := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	relay, err := outbox.NewRelay(db, intents, outbox.RelayConfig{})
	check(err)

	apply := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(
		millrace.VersionGate{OnGap: inbox.GapFail}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			id, err := inbox.ID(msg.Context(), "payment")
			if err != nil {
				return nil, err
			}
			intent := message.NewMessage(id, msg.Payload)
			intent.SetContext(msg.Context())
			return nil, out.Publish("payments", intent)
		}))

	provider := &bank{booked: map[string]string{}}
	payment := inbox.Step{Name: "payment", Do: provider.pay, Idempotent: true}
	send := millrace.Deduplicate{Claims: store.Leases(), Consumer: "sender"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			_, err := payment.Run(msg.Context())
			fmt.Printf("%s is paid for: %v\n", msg.Payload, err == nil)
			return nil, err
		})

	for _, version := range []int64{1, 3, 1, 2, 3, 2} { // the first 3 comes too early
		change := message.NewMessage(fmt.Sprintf("change-%d", version), fmt.Appendf(nil, "version %d", version))
		outbox.Stamp(change, "account-7", version)
		_, err := apply(change)
		fmt.Println("version", version, "is acked:", err == nil)
	}
	_, err = relay.RelayBatch(ctx)
	check(err)
	payments, err := intents.Subscribe(ctx, "payments")
	check(err)
	for range 3 {
		intent := <-payments
		_, err := send(intent)
		check(err)
		intent.Ack()
	}
	fmt.Println("payments:", len(provider.booked))
	// Unordered output:
	// version 1 is acked: true
	// version 3 is acked: false
	// version 1 is acked: true
	// version 2 is acked: true
	// version 3 is acked: true
	// version 2 is acked: true
	// version 1 is paid for: true
	// version 2 is paid for: true
	// version 3 is paid for: true
	// payments: 3
}
