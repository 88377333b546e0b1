package rabbitmq

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/internal/reserved"
)

// ReservedPrefix begins the metadata by which a delivery is described. [Marshaler.Marshal]
// leaves such metadata out, so that it does not travel on when a message is published again,
// and [Marshaler.Unmarshal] takes none of it from outside.
const ReservedPrefix = "_millrace_"

// Metadata that [Marshaler.Unmarshal] adds to a message.
const (
	// HeaderPrefix begins the name of a header that RabbitMQ itself has set, such as x-death,
	// x-acquired-count or x-first-death-queue, which describe the way of a message and are no
	// part of it. Headers that begin with x- and are not RabbitMQ's keep their names.
	HeaderPrefix = reserved.BrokerHeader

	// RedeliveredKey is "true" where RabbitMQ says that it may have delivered the message
	// before, and missing otherwise.
	RedeliveredKey = ReservedPrefix + "amqp_redelivered"

	// DeliveryCountKey is how often a quorum queue delivered the message before; missing on
	// the first delivery, and with classic queues, which do not count. From RabbitMQ 4.3 on,
	// only deliveries that failed count, and a dead letter goes on from the count it died with.
	DeliveryCountKey = ReservedPrefix + "amqp_delivery_count"

	// DeathCountKey is how often the message was dead-lettered, by whatever queue and for
	// whatever reason; missing where it never was.
	DeathCountKey = ReservedPrefix + "amqp_death_count"

	// MessageIDKey is the AMQP property message-id; missing where there is none.
	MessageIDKey = ReservedPrefix + "amqp_message_id"
)

// Headers that RabbitMQ reads.
const (
	deathHeader         = "x-death"
	deliveryCountHeader = "x-delivery-count"
	ccHeader            = "CC"
	bccHeader           = "BCC"
)

// brokerHeaders are those that RabbitMQ and its plugins set on a message on its way, and the
// beginnings of those that are many.
var (
	brokerHeaders = []string{
		deathHeader, deliveryCountHeader, "x-acquired-count", "x-stream-offset", "x-routed-by", "x-received-from",
		"x-invalid-headers", "x-opt-deaths",
	}
	brokerPrefixes = []string{"x-first-death-", "x-last-death-", "x-shovelled", "x-opt-shovel", "x-opt-rabbitmq-"}
)

// brokers reports whether a header is RabbitMQ's own. As text, which all metadata is, it would
// mean nothing to it, or the wrong thing.
func brokers(header string) bool {
	if !strings.HasPrefix(header, "x-") {
		return false
	}
	return slices.Contains(brokerHeaders, header) || slices.ContainsFunc(brokerPrefixes, func(beginning string) bool {
		return strings.HasPrefix(header, beginning)
	})
}

const maxShortString = 255

// Redelivered reports whether RabbitMQ marked the delivery as one that may not be the first.
// It fits the field Redelivered of middleware.Inbox, which then looks such a message up
// before it claims it. False says little: a message published twice is not marked.
func Redelivered(msg *message.Message) bool { return msg.Metadata[RedeliveredKey] == "true" }

// Marshaler turns messages into what RabbitMQ stores and back. It understands what
// watermill-amqp's DefaultMarshaler sends, and is understood by it. The zero value is right
// for most services. It may be used by several goroutines.
type Marshaler struct {
	// Transient lets RabbitMQ forget messages when it restarts. By default they are
	// persistent, without which a confirm means little.
	Transient bool

	// UUIDHeader is the header of the message's UUID. Defaults to watermill-amqp's.
	UUIDHeader string
}

var _ amqp.Marshaler = Marshaler{}

// Marshal makes headers of msg's metadata, apart from what begins with [ReservedPrefix] and
// what RabbitMQ itself sets on its way, such as x-death and x-delivery-count. The UUID becomes a header
// and the AMQP message-id, the time the AMQP timestamp.
//
// It refuses what would not arrive as it is, or would cost the channel: keys of more than 255
// bytes, and CC and BCC, by which RabbitMQ routes and which may not be text.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	headers := make(amqp091.Table, len(msg.Metadata)+1)
	for key, value := range msg.Metadata {
		switch {
		case strings.HasPrefix(key, ReservedPrefix), brokers(key):
			continue
		case key == ccHeader, key == bccHeader:
			return amqp091.Publishing{}, fmt.Errorf("metadata %s: RabbitMQ routes by a header of this name", key)
		case len(key) > maxShortString:
			return amqp091.Publishing{}, fmt.Errorf("metadata %.20s…: its key is longer than 255 bytes", key)
		}
		headers[key] = value
	}
	headers[m.uuidHeader()] = msg.UUID
	p := amqp091.Publishing{
		Headers: headers, Body: msg.Payload, Timestamp: time.Now(), DeliveryMode: amqp091.Persistent,
	}
	if len(msg.UUID) <= maxShortString {
		p.MessageId = msg.UUID
	}
	if m.Transient {
		p.DeliveryMode = amqp091.Transient
	}
	return p, nil
}

// Unmarshal never fails. Headers become metadata: text as it is, numbers and booleans as Go
// prints them, times in RFC 3339, bytes as text if they are UTF-8 and in base64 if not,
// tables and lists as JSON. CC, which addresses the delivery and not the message, is left out,
// and what RabbitMQ itself has set is found under [HeaderPrefix], so that it does not travel on.
//
// The UUID is that of the Watermill header, else the AMQP message-id. A message of another
// producer may have neither: then its UUID is empty, and the inbox refuses it with an error
// that says so unless it was given another key.
func (m Marshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	uuid := text(d.Headers[m.uuidHeader()])
	if uuid == "" {
		uuid = d.MessageId
	}
	msg := message.NewMessage(uuid, d.Body)
	msg.Metadata = make(message.Metadata, len(d.Headers)+2)
	for key, value := range d.Headers {
		switch {
		case key == m.uuidHeader(), key == ccHeader, key == deliveryCountHeader, strings.HasPrefix(key, ReservedPrefix):
		case brokers(key):
			msg.Metadata[HeaderPrefix+key] = text(value)
		default:
			msg.Metadata[key] = text(value)
		}
	}
	if d.Redelivered {
		msg.Metadata[RedeliveredKey] = "true"
	}
	if n, counted := integer(d.Headers[deliveryCountHeader]); counted {
		msg.Metadata[DeliveryCountKey] = strconv.FormatInt(n, 10)
	}
	if n := deaths(d.Headers[deathHeader]); n > 0 {
		msg.Metadata[DeathCountKey] = strconv.FormatInt(n, 10)
	}
	if d.MessageId != "" {
		msg.Metadata[MessageIDKey] = d.MessageId
	}
	return msg, nil
}

func (m Marshaler) uuidHeader() string {
	if m.UUIDHeader == "" {
		return amqp.DefaultMessageUUIDHeaderKey
	}
	return m.UUIDHeader
}

// deaths adds up the list that RabbitMQ keeps, an entry for each queue and reason.
func deaths(header any) (n int64) {
	list, _ := header.([]any)
	for _, entry := range list {
		if table, is := entry.(amqp091.Table); is {
			count, _ := integer(table["count"])
			n += count
		}
	}
	return n
}
