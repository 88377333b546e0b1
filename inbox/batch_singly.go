package inbox

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// singly lists the subscribers that wait for the answer to a message before they deliver the next one, whatever
// their settings are. One of Kafka does so for each partition, and is not listed. JetStream may deliver
// others before a message that was nacked, so oneInFlight does not list it.
var singly = map[string]bool{
	"amqp.Subscriber": true, "jetstream.Subscriber": true, "redisstream.Subscriber": true,
	"sql.Subscriber": true, "watermillsql.Subscriber": true,
}

// warnSingly logs once that the subscriber of m never delivers what could be a batch.
func (b *batches) warnSingly(m *member) {
	name := message.SubscriberNameFromCtx(m.delivery.ctx)
	if !singly[name] || m.delivery.lease != nil { // a queue delivers as many as it has hands
		return
	}
	b.consumer.warnedSingly.Do(func() {
		m.delivery.log().Info("inbox: the subscriber delivers one message at a time, so each batch has one; said once per consumer",
			watermill.LogFields{"reason": name + " waits for each ack"})
	})
}
