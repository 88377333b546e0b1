package rabbitmq

import (
	"errors"
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

// fits refuses a name that amqp091 would cut silently: it sends the length as one byte, so that of 256 bytes or more
// the first len(name) % 256 are left, which may be the name of something else.
func fits(what, name string) error {
	if len(name) <= maxShortString {
		return nil
	}
	return fmt.Errorf("the name of the %s, %.40q…, has %d bytes, and RabbitMQ allows 255: shorten the topic, "+
		"or have the Config generate a shorter name", what, name, len(name))
}

// queueFits refuses an empty name, too: RabbitMQ would make up another one each time.
func queueFits(name string) error {
	if name == "" {
		return errors.New("the name of the queue is empty: give the topic a name, or have Config.Queue.GenerateName return one")
	}
	return fits("queue", name)
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
