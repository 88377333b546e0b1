package middleware_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A week of orders is sent again, marked as a replay. The projection, in a new epoch, is built
// anew from it and announces nothing. The consumer that sends mails refuses what it does not
// remember; an operator may still want one of them handled.
func ExampleInbox_replay() {
	db, store, done := exampleStore(`CREATE TABLE turnover (order_id TEXT PRIMARY KEY)`)
	defer done()

	projection := millrace.Inbox{Store: store, Consumer: "turnover", Options: inbox.Options{Epoch: 1, OnReplay: inbox.ReplaySuppress}}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(msg.Context(), `INSERT INTO turnover VALUES (?)`, msg.UUID)
			fmt.Println("turnover of", msg.UUID, "is a replay:", inbox.IsReplay(msg.Context()))
			return nil, err
		})
	mails := millrace.Inbox{Store: store, Consumer: "mails", Options: inbox.Options{OnReplay: inbox.ReplayRefuse}}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			fmt.Println("mail for", msg.UUID)
			return nil, nil
		})

	replayed := func() *message.Message {
		order := message.NewMessage("order-1", []byte("{}"))
		order.Metadata.Set(inbox.ReplayField, "week 20, for the turnover")
		return order
	}
	for _, handler := range []message.HandlerFunc{projection, mails} {
		_, err := handler(replayed())
		check(err)
	}
	var orders int
	check(db.Get(&orders, `SELECT COUNT(*) FROM turnover`))
	fmt.Println("orders:", orders)

	parked, err := admin.New(store).Find(context.Background(), admin.Filter{Status: admin.Parked}, 0, 10)
	check(err)
	for _, m := range parked {
		fmt.Println(m.Consumer, m.MessageID, "was", m.Reason)
	}
	// Output:
	// turnover of order-1 is a replay: true
	// orders: 1
	// mails order-1 was replayed by "week 20, for the turnover", and this consumer refuses replayed messages: Retry has it handled all the same
}
