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

// delivery is one arrival of a message, with all that identifies it, read once.
type delivery struct {
	consumer     *claimConsumer
	msg          *message.Message
	as           original.Delivery               // the message before any middleware changed it
	otherHash    func() (hash int64, known bool) // a second hash, of a message that a middleware changed
	ctx          context.Context                 //nolint:containedctx // the message's own, as it was on entry
	topic        string
	key          string   // as the user sees it
	memoryKey    string   // the key of turns and caches in this process, unless the message collided
	id           []byte   // the key as the tables have it
	formerID     []byte   // the same under FormerKey; nil if it has none
	collidedWith []byte   // the id it collided with; nil if it did not
	fingerprint  [32]byte // of the payload, unless Config.Fingerprint says otherwise
	hash         int64    // the first 8 bytes of fingerprint, stored with the claim
	token        int64    // tells this attempt's claim from any other's
	lease        *Leased  // set if a queue delivers the message from our own table
	replayed     bool
	replay       string // the name of its replay
	asFirstSent  bool   // it stands in for the stored first delivery, which was no replay
	keyless      why    // why it has no usable key: none, two, or no fingerprint
}

var errAcked = errors.New("the message was acked before the inbox saw it, so a failure would lose it: " +
	"remove InstantAck, or put it nowhere outside middleware.Inbox")

// errNackedBefore says no more than why a second try of Retry does nothing.
var errNackedBefore = errors.New("the message was nacked before the inbox saw it, as by an earlier try of its handler: " +
	"return an error instead of calling Nack")

// errNacked fails a run whose message will be redelivered.
var errNacked = errors.New("the message was nacked while its handler ran, so the run counts as failed although it returned no error: " +
	"return an error instead of calling Nack")

// readDelivery reads what identifies msg. With an error it returns as much as it knows by then.
func (c *claimConsumer) readDelivery(msg *message.Message) (*delivery, error) {
	d := &delivery{consumer: c, msg: msg, as: original.Arrive(msg), ctx: replayContext(msg.Context(), msg)}
	d.replay, d.replayed = replayed(msg)
	d.topic = message.SubscribeTopicFromCtx(d.ctx)
	if err := answeredBefore(msg, errAcked); err != nil {
		return d, err
	}
	if leaseOf(msg) != nil {
		return d, errOutsideInbox
	}
	d.lease = leasedOf(d.ctx)
	if err := d.refuseOtherQueue(); err != nil {
		return d, err
	}
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

// identify finds the key of d. A stored message keeps the key it was stored with.
func (c *claimConsumer) identify(d *delivery) error {
	if d.lease != nil && d.topic == "" {
		d.topic = string(d.lease.row.Topic)
	}
	if d.lease != nil && !d.inherited() {
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

// queueAttempt returns the attempt in which a queue delivers d, nil if no queue does.
func (d *delivery) queueAttempt() *attempt {
	return deliveredBy(d.ctx)
}

// collide gives d an id of its own, derived from the id it collided with and its payload.
func (d *delivery) collide() {
	d.collidedWith = d.id
	d.id = keycode.Derive(d.id, d.fingerprint)
}

// interrupted tells the queue, if one delivers d, why the handler does not run.
func (d *delivery) interrupted(cause error) {
	if a := d.queueAttempt(); a != nil {
		a.interrupted(cause)
	}
	d.stray()
}

// fail names the message in err, an error of the inbox.
func (d *delivery) fail(err error) error { return d.name(database.Explain(err)) }

// name names the message in err, which may be an error of the handler.
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

func answered(msg *message.Message) bool { return closed(msg.Acked()) || closed(msg.Nacked()) }

// answeredBefore returns an error if msg was answered already: acked if it was acked.
func answeredBefore(msg *message.Message, acked error) error {
	switch {
	case closed(msg.Acked()):
		return acked
	case closed(msg.Nacked()):
		return errNackedBefore
	}
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// redelivered reports whether watermill-amqp v3 or pubsub/rabbitmq marked msg as delivered
// before. The inbox takes it as a hint to look a message up before claiming it, never as proof.
func redelivered(msg *message.Message) bool {
	return msg.Metadata["_watermill_amqp_redelivered"] == "true" || msg.Metadata[reserved.Redelivered] == "true"
}

// messageTime reads when a message was made, from CloudEvents' ce_time or Google Cloud's publishTime.
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

// refuseOtherQueue returns an error if the queue of another consumer delivers d. Both kinds of its deliveries are refused: if the
// handler failed, that queue would take d for a copy of its own consumer's message.
func (d *delivery) refuseOtherQueue() error {
	a := d.queueAttempt()
	if a == nil || a.queue.store == d.consumer.store && a.queue.name == d.consumer.queueName() {
		return nil
	}
	if !d.as.Came.Taken() {
		d.ctx, d.lease = undelivered(d.ctx), nil
		return nil
	}
	return fmt.Errorf("%w: give pubsub.Durable and middleware.Inbox the same Store, Consumer and Epoch", otherQueue(a.queue))
}

// useQueuesOriginal makes the message that the queue received the original of d, if a middleware
// between queue and inbox passes on a message of its own with another UUID.
func (d *delivery) useQueuesOriginal() error {
	a := d.queueAttempt()
	if a == nil || a.queue.store != d.consumer.store || a.queue.name != d.consumer.queueName() || d.as.Came.Taken() {
		return nil
	}
	came := a.came
	if l := leasedOf(d.ctx); l != nil {
		var err error
		if came, err = l.original(nil); err != nil {
			return err
		}
	}
	if !came.Is(d.msg) {
		d.as.Came = came
	}
	return nil
}

// refuseChangedKey marks d as to be parked if a middleware between queue and inbox changed its key:
// the message would have one key if the queue stores it, and another one if the queue passes it on.
func (d *delivery) refuseChangedKey() {
	if d.lease != nil || d.consumer.heir != nil || d.keyless.text != "" || !d.as.Changed() || d.queueAttempt() == nil {
		return
	}
	key, err := d.consumer.config.Key.find(d.copyOf(d.as.Came))
	if err != nil || key == d.key { // on an error, the queue has no key for it
		return
	}
	d.keyless = why{ReasonNoKey, fmt.Sprintf(ReasonNoKey+": it is %.200q in middleware.Inbox, but was %.200q in pubsub.Durable. "+
		"A middleware between them changed it: give both the same Key, of something that no middleware changes, or put "+
		"that middleware inside the inbox; then try the message again", d.key, key)}
}
