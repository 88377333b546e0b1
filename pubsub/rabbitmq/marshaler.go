package rabbitmq

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/internal/reserved"
)

// ReservedPrefix begins the names of metadata that describe a delivery. [Marshaler.Marshal]
// leaves such metadata out, so that it does not travel on when the message is published again,
// and [Marshaler.Unmarshal] accepts none from outside.
const ReservedPrefix = "_millrace_"

// Metadata that [Marshaler.Unmarshal] adds to a message.
const (
	// HeaderPrefix goes before the name of a header that RabbitMQ itself has set, such as x-death,
	// x-acquired-count or x-first-death-queue: these describe the message's way and are not part
	// of it. Headers that begin with x- and are not RabbitMQ's keep their names.
	HeaderPrefix = reserved.BrokerHeader

	// RedeliveredKey is "true" if RabbitMQ says that it may have delivered the message before,
	// and missing otherwise.
	RedeliveredKey = ReservedPrefix + "amqp_redelivered"

	// DeliveryCountKey is how often a quorum queue delivered the message before; missing on
	// the first delivery, and with classic queues, which do not count. From RabbitMQ 4.3 on,
	// only deliveries that failed count, and a dead letter goes on from the count it died with.
	DeliveryCountKey = ReservedPrefix + "amqp_delivery_count"

	// DeathCountKey is how often the message was dead-lettered, by any queue and for any reason;
	// missing if it never was.
	DeathCountKey = ReservedPrefix + "amqp_death_count"

	// MessageIDKey is the AMQP property message-id; missing if there is none.
	MessageIDKey = ReservedPrefix + "amqp_message_id"
)

// Headers that RabbitMQ reads.
const (
	deathHeader         = "x-death"
	deliveryCountHeader = "x-delivery-count"
	ccHeader            = "CC"
	bccHeader           = "BCC"
)

// brokerHeaders are the headers that RabbitMQ and its plugins set on a message on its way;
// brokerPrefixes begin the names of others.
var (
	brokerHeaders = []string{
		deathHeader, deliveryCountHeader, "x-acquired-count", "x-stream-offset", "x-routed-by", "x-received-from",
		"x-invalid-headers", "x-opt-deaths",
	}
	brokerPrefixes = []string{"x-first-death-", "x-last-death-", "x-shovelled", "x-opt-shovel", "x-opt-rabbitmq-"}
)

// brokers reports whether a header is RabbitMQ's own. Metadata is text, and sent back as text such
// a header would mean nothing to RabbitMQ, or the wrong thing.
func brokers(header string) bool {
	if !strings.HasPrefix(header, "x-") {
		return false
	}
	return slices.Contains(brokerHeaders, header) || slices.ContainsFunc(brokerPrefixes, func(beginning string) bool {
		return strings.HasPrefix(header, beginning)
	})
}

const maxShortString = 255

// Redelivered reports whether RabbitMQ marked the delivery as one that may not be the first. The
// inbox looks such a message up before it claims it. False says little: RabbitMQ does not mark a
// message that was published twice.
func Redelivered(msg *message.Message) bool { return msg.Metadata[RedeliveredKey] == "true" }

// Marshaler turns messages into what RabbitMQ stores and back. It and watermill-amqp's
// DefaultMarshaler read each other's messages. The zero value is right for most services. It is
// safe for concurrent use.
type Marshaler struct {
	// Transient lets RabbitMQ forget messages when it restarts. By default they are
	// persistent: a confirm means little for a message that is not.
	Transient bool

	// UUIDHeader is the header of the message's UUID. Defaults to watermill-amqp's.
	UUIDHeader string
}

var _ amqp.Marshaler = Marshaler{}

// Marshal turns msg's metadata into headers, apart from names that begin with [ReservedPrefix] and
// headers that RabbitMQ itself sets, such as x-death and x-delivery-count. The UUID becomes a
// header and the AMQP message-id, the current time the AMQP timestamp.
//
// It refuses metadata that would arrive changed, or for which RabbitMQ would close the channel:
// keys of more than 255 bytes, a field named like the header of the UUID that is not the UUID, and CC and BCC,
// by which RabbitMQ routes and which may not be text.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	headers := make(amqp091.Table, len(msg.Metadata)+1)
	for key, value := range msg.Metadata {
		switch {
		case strings.HasPrefix(key, ReservedPrefix), brokers(key):
			continue
		case key == ccHeader, key == bccHeader:
			return amqp091.Publishing{}, errorf("metadata %s: RabbitMQ routes by a header of this name: rename the field", key)
		case len(key) > maxShortString:
			return amqp091.Publishing{}, errorf("metadata %.20s…: its key is longer than 255 bytes", key)
		case key == m.uuidHeader() && value != msg.UUID:
			return amqp091.Publishing{}, errorf("metadata %s: the message's UUID has the header of this name: rename the field", key)
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
// prints them, times in RFC 3339, bytes as text if they are UTF-8 and in base64 if not, tables
// and lists as JSON. Unmarshal leaves CC out, which addresses the delivery and not the message,
// and puts [HeaderPrefix] before headers that RabbitMQ itself has set, so that they do not travel
// on.
//
// The UUID is that of the Watermill header, or else the AMQP message-id. A message of another
// producer may have neither: then its UUID is empty, and an inbox refuses it, with an error that
// says so, unless it has another key.
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

// deaths adds up x-death, in which RabbitMQ keeps an entry for each queue and reason.
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
