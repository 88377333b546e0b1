package rabbitmq

import (
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// frameOverhead is what a frame needs besides its payload.
const frameOverhead = 8

// check refuses properties that amqp091 would truncate silently, and those for which RabbitMQ would
// close the whole connection: a message's properties and headers must fit into one frame.
func check(p *amqp091.Publishing, frameSize int) error {
	if err := p.Headers.Validate(); err != nil {
		return fmt.Errorf("its headers: %w", err)
	}
	size := 2 + 2 + 8 + 2 + 1 + 1 + 8 // class, weight, body size, flags, mode, priority, timestamp
	for _, s := range []string{
		p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo, p.Expiration, p.MessageId,
		p.Type, p.UserId, p.AppId,
	} {
		if len(s) > maxShortString {
			return fmt.Errorf("the property %.20s… is longer than 255 bytes", s)
		}
		size += 1 + len(s)
	}
	headers, err := sizeOf(p.Headers)
	if err != nil {
		return err
	}
	if size += headers; frameSize > 0 && size > frameSize-frameOverhead {
		return fmt.Errorf("its metadata takes %d bytes; RabbitMQ allows %d (frame_max)", size, frameSize-frameOverhead)
	}
	return nil
}

// sizeOf returns how many bytes a field takes on the wire, without its type.
func sizeOf(value any) (size int, err error) {
	switch v := value.(type) {
	case string:
		return 4 + len(v), nil
	case []byte:
		return 4 + len(v), nil
	case amqp091.Table:
		size = 4
		for key, field := range v {
			if len(key) > maxShortString {
				return 0, fmt.Errorf("the header %.20s… has a key longer than 255 bytes", key)
			}
			n, err := sizeOf(field)
			if err != nil {
				return 0, err
			}
			size += 1 + len(key) + 1 + n
		}
		return size, nil
	case []any:
		size = 4
		for _, field := range v {
			n, err := sizeOf(field)
			if err != nil {
				return 0, err
			}
			size += 1 + n
		}
		return size, nil
	case time.Time, int64, float64:
		return 8, nil
	case nil:
		return 0, nil
	default: // smaller numbers, booleans and decimals
		return 5, nil
	}
}
