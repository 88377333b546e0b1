// Package reserved names the metadata fields that describe a delivery, not a message.
package reserved

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Prefix starts the name of each field that Millrace sets on a message when it delivers
// it. Such a field is never sent on, and never read from a message that somebody publishes.
const Prefix = "_millrace_"

// Redelivered is "true" on a message that RabbitMQ may have delivered before.
const Redelivered = Prefix + "amqp_redelivered"

// BrokerHeader begins the name of a header that RabbitMQ itself has set.
const BrokerHeader = Prefix + "amqp_header_"

// Strip returns md without reserved fields; md itself if it has none.
func Strip(md message.Metadata) message.Metadata {
	found := false
	for name := range md {
		found = found || strings.HasPrefix(name, Prefix)
	}
	if !found {
		return md
	}
	rest := make(message.Metadata, len(md))
	for name, value := range md {
		if !strings.HasPrefix(name, Prefix) {
			rest[name] = value
		}
	}
	return rest
}
