// Package reserved names the metadata fields that describe a delivery, not a message.
package reserved

import (
	"maps"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Prefix is the prefix of the fields that Millrace sets when it delivers a message. It never sends
// such a field on, and never reads one from a published message.
const Prefix = "_millrace_"

// Redelivered is "true" on a message that RabbitMQ may have delivered before.
const Redelivered = Prefix + "amqp_redelivered"

// BrokerHeader is the prefix of fields that hold headers set by RabbitMQ itself.
const BrokerHeader = Prefix + "amqp_header_"

// watermillPrefix is the prefix of the fields that watermill-amqp sets when it delivers a message.
const watermillPrefix = "_watermill_"

// Own returns the part of md that is the same in each delivery of a message, and if it is sent again.
func Own(md message.Metadata) message.Metadata {
	own := Replayed(md, "")
	maps.DeleteFunc(own, func(name, _ string) bool {
		return name == Replay || name == ReplayAttempt || strings.HasPrefix(name, watermillPrefix)
	})
	return own
}

// Strip returns md without reserved fields, and md itself if it has none.
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
