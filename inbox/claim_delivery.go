package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/reserved"
)

// delivery is one arrival of a message: what identifies it, read once.
type delivery struct {
	consumer     *Consumer
	msg          *message.Message
	as           original.Delivery               // the message before others could change it
	otherHash    func() (hash int64, known bool) // what else it is known by, where it was changed on its way
	ctx          context.Context                 //nolint:containedctx // the message's own, as it was on entry
	topic        string
	key          string   // as the user sees it
	memoryKey    string   // what it is known by in this process, unless it collided
	id           []byte   // as it is stored
	formerID     []byte   // what it is in the epoch before; nil: nothing
	collidedWith []byte   // of a collision: the id it collided with
	fingerprint  [32]byte // of the payload, unless the user chose otherwise
	hash         int64    // its beginning, stored with the claim
	token        int64    // tells this attempt's claim from any other's
	lease        *Leased  // set where it comes from our own table
	replayed     bool
	replay       string // what it says of its replay
	asFirstSent  bool   // it takes the place of the message as it was sent first
	keyless      why    // of a message that has no key, or two, or that cannot be compared
}

var errAnswered = errors.New("the message was acked or nacked before the inbox saw it, so a failure would lose it: " +
	"remove InstantAck, or put it nowhere outside middleware.Inbox")

func (c *Consumer) readDelivery(msg *message.Message) (*delivery, error) {
	d := &delivery{consumer: c, msg: msg, as: original.Arrive(msg), ctx: replayContext(msg.Context(), msg)}
	d.replay, d.replayed = replayed(msg)
	d.topic = message.SubscribeTopicFromCtx(d.ctx)
	if answered(msg) {
		return d, errAnswered
	}
	d.lease = leasedOf(d.ctx)
	if err := d.useQueuesOriginal(); err != nil {
		return d, err
	}
	if err := c.identify(d); err != nil {
		return d, err
	}
	d.refuseChangedKey()
	if err := d.findFormer(); err != nil {
		return d, err
	}
	if err := d.compare(); err != nil {
		return d, err
	}
	d.memoryKey = c.prefix + string(d.id)
	d.token = rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	return d, nil
}

// identify finds the key of d. A delivery from our own table brings it.
func (c *Consumer) identify(d *delivery) error {
	if d.lease != nil && d.topic == "" {
		d.topic = string(d.lease.row.Topic)
	}
	if d.lease != nil && !d.inherited() {
		if d.lease.queue.store != c.store || d.lease.queue.name != c.name() {
			return fmt.Errorf("the message was stored for consumer %q, epoch %d: give pubsub.Durable and middleware.Inbox "+
				"the same Store, Consumer and Epoch", d.lease.queue.name.Name, d.lease.queue.name.Epoch)
		}
		d.key, d.id = keycode.String(d.lease.row.MessageID), d.lease.row.MessageID
		return nil
	}
	key, err := c.keyOf(d)
	if err != nil {
		return d.withoutKey(err)
	}
	d.key, d.id = key, keycode.Encode(key)
	return nil
}

// queueAttempt returns what the queue that delivers d wants to know, nil if none does.
func (d *delivery) queueAttempt() *attempt {
	return deliveredBy(d.ctx)
}

// collide gives d the identity of a message of its own.
func (d *delivery) collide() {
	d.collidedWith = d.id
	d.id = keycode.Derive(d.id, d.fingerprint)
}

// interrupted says why the handler does not run.
func (d *delivery) interrupted(cause error) {
	if a := d.queueAttempt(); a != nil {
		a.interrupted(cause)
	}
}

// fail names the message in err, an error of ours.
func (d *delivery) fail(err error) error { return d.name(database.Explain(err)) }

// name names the message in err, which may be the handler's.
func (d *delivery) name(err error) error {
	id := d.key
	if id == "" {
		id = d.msg.UUID
	}
	return &DeliveryError{Consumer: d.consumer.config.Name, MessageID: id, Topic: d.topic, Err: err}
}

func (d *delivery) log() watermill.LoggerAdapter {
	return d.consumer.store.log.With(d.event("").fields())
}

func (d *delivery) event(reason string) Event {
	kind, _ := d.consumer.config.Describe(d.msg)
	return Event{
		Consumer:  d.consumer.config.Name,
		Epoch:     d.consumer.config.Epoch,
		MessageID: d.key,
		UUID:      d.msg.UUID,
		Topic:     d.topic,
		Type:      kind,
		Reason:    reason,
		Attempt:   Attempt(d.ctx),
		Metadata:  d.msg.Metadata,
		Replay:    d.replay,
	}
}

func answered(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

// Redelivered reports whether a message is marked as delivered before, by watermill-amqp v3
// or pubsub/rabbitmq. It is a hint about what to ask the database first, never an answer.
func Redelivered(msg *message.Message) bool {
	return msg.Metadata["_watermill_amqp_redelivered"] == "true" || msg.Metadata[reserved.Redelivered] == "true"
}

// messageTime reads when a message was made: CloudEvents' ce_time, Google Cloud's publishTime.
func messageTime(msg *message.Message) (time.Time, bool) {
	for _, field := range []string{"ce_time", "publishTime"} {
		if value := msg.Metadata[field]; value != "" {
			if t, err := time.Parse(time.RFC3339Nano, value); err == nil && !t.IsZero() {
				return t, true
			}
		}
	}
	return time.Time{}, false
}

// describe reads the event type: Watermill's CQRS calls it name, CloudEvents ce_type.
func describe(msg *message.Message) (kind, version string) {
	return eventType(msg), msg.Metadata["ce_dataschema"]
}

func eventType(msg *message.Message) string {
	if name := msg.Metadata["name"]; name != "" {
		return name
	}
	return msg.Metadata["ce_type"]
}
