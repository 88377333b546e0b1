package stored

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Unsettled is the outcome of a committed run, which the broker may lack.
type Unsettled struct {
	Consumer  string
	Epoch     int
	MessageID string
	Topic     string
	Messages  []*message.Message
	StoredAt  time.Time
	Age       time.Duration

	ConsumerID int32
	ID         []byte
}

// UnsettledFilter selects outcomes. An empty Consumer and a nil Epoch match all.
type UnsettledFilter struct {
	Consumer string
	Epoch    *int
	Age      time.Duration // since when they are stored, at least
}
