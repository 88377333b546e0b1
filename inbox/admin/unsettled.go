package admin

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// An UnsettledOutcome is what a handler produced in a committed run and the broker may lack.
type UnsettledOutcome struct {
	Consumer  string
	Epoch     int
	MessageID string
	Topic     string
	Messages  []*message.Message
	StoredAt  time.Time
	Age       time.Duration
}

// Unsettled lists the oldest outcomes stored longer than age ago, at most limit of them. It leaves
// out those that it cannot read, and names them in the error. [inbox.Store.Redispatch] publishes
// them.
func (a *Admin) Unsettled(ctx context.Context, age time.Duration, limit int) ([]UnsettledOutcome, error) {
	outcomes, err := a.inbox.Unsettled(ctx, age, limit)
	var found []UnsettledOutcome
	for _, o := range outcomes {
		found = append(found, UnsettledOutcome{
			Consumer: o.Consumer, Epoch: o.Epoch, MessageID: o.MessageID, Topic: o.Topic, Messages: o.Messages,
			StoredAt: o.StoredAt, Age: o.Age,
		})
	}
	return found, err
}
