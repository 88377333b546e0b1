package outbox

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// publishCall is a call of the publisher that has not returned.
type publishCall struct {
	topic string
	uuid  string // of the first message
	count int
	began time.Time
}

// overdueAfter is how long a call of the publisher may take: longer than publishers wait for confirms.
const overdueAfter = time.Minute

var errOverdue = errors.New("nobody can tell whether they were sent, so they and those behind them in their lane wait, and no other relay " +
	"gets their shards: give the publisher a timeout, or end this process")

// sayOverdue logs each call of the publisher that takes too long, once.
func (p *pump) sayOverdue(now time.Time) {
	for i := range p.lanes {
		line := &p.lanes[i]
		call := line.lane.calling.Load()
		if call == nil || call == line.overdue || now.Sub(call.began) < overdueAfter {
			continue
		}
		line.overdue = call
		p.log.Error("outbox: the publisher does not return; its messages wait", errOverdue, watermill.LogFields{
			"topic": call.topic, "message_uuid": call.uuid, "count": call.count, "after": now.Sub(call.began).String(),
		})
	}
}
