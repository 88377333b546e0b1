package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/remaining"
	"github.com/millrace-go/millrace/internal/reserved"
)

const subscriberKind = "subscriber"

// Dead is a replay of a dead-letter topic or queue.
type Dead struct {
	Name string
	From message.Subscriber
	To   Target
	By   admin.Operator

	// Topic is the topic or queue to read from From.
	Topic string

	// TopicOf returns the topic that a message originally came from. Defaults to [Origin].
	TopicOf func(*message.Message) (string, error)

	// Limit is how many messages all calls under this name send together, at most; 0 for no limit.
	Limit int

	// Idle is how long the topic must deliver nothing to count as empty. Defaults to 5 seconds. A
	// rabbitmq.Subscriber then asks RabbitMQ, too. With another one Idle has to be longer than an
	// outage of the broker: a subscriber that has lost its connection delivers nothing either.
	Idle time.Duration

	// PerSecond is how many messages to send per second, at most. Defaults to 1000.
	PerSecond int

	// IntoSideEffects is as in [Request]. Unless the target is a queue, nobody can tell beforehand
	// who gets the messages: a consumer that refuses replays handles those that had failed there,
	// and parks the others. A consumer of middleware.Deduplicate that refuses replays acks them, and
	// they are lost.
	IntoSideEffects []string

	// Progress is called after each message. Defaults to nothing.
	Progress func(Status)
}

func (d *Dead) setDefaults() {
	if d.TopicOf == nil {
		d.TopicOf = Origin
	}
	if d.Idle == 0 {
		d.Idle = 5 * time.Second
	}
	if d.PerSecond == 0 {
		d.PerSecond = 1000
	}
}

// Origin returns where a dead letter came from: the topic that Watermill's PoisonQueue noted, or else
// the exchange or, without one, the queue from which RabbitMQ first dead-lettered it. It returns an
// error for a message that names neither.
func Origin(msg *message.Message) (string, error) {
	const exchange, queue = "x-first-death-exchange", "x-first-death-queue"
	for _, field := range []string{
		wm.PoisonedTopicKey,
		reserved.BrokerHeader + exchange, exchange, // by pubsub/rabbitmq, and by another marshaler
		reserved.BrokerHeader + queue, queue,
	} {
		if topic := msg.Metadata.Get(field); topic != "" {
			return topic, nil
		}
	}
	return "", errorf("message %q does not say where it came from: it has neither the metadata field %s nor RabbitMQ's; set Dead.TopicOf",
		msg.UUID, wm.PoisonedTopicKey)
}

// request returns what d has in common with other replays.
func (d *Dead) request() *Request {
	return &Request{
		Name: d.Name, From: subscriber{d.Topic}, To: d.To, By: d.By, PerSecond: d.PerSecond,
		IntoSideEffects: d.IntoSideEffects, Filter: Filter{Topic: d.Topic}, Progress: d.Progress,
	}
}

// subscriber is the Source of a Dead. It has no pages: drain reads the messages itself.
type subscriber struct{ topic string }

func (subscriber) kind() string { return subscriberKind }

func (subscriber) page(context.Context, Filter, int64, int64, int) ([]item, error) { return nil, nil }

func (subscriber) count(context.Context, Filter, int64) ([]Count, error) { return nil, nil }

func (subscriber) pinned(_ context.Context, f Filter) (Filter, error) { return f, nil }

// Drain sends the messages of a dead-letter topic or queue again, until it delivers no more or ctx
// ends, and acks each message when it is stored or sent. To continue, call it again under the same
// name.
//
// A replay that is [Done], because the topic was empty or Limit was reached, stays so: Drain then does
// nothing, and what comes to the topic later needs another name.
//
// If the process dies in between, a message is sent twice, with the same UUID. So may be the last one
// before Limit or before the end of ctx, if the subscriber ends before it has passed on the ack.
//
// Of two calls at the same time under one name, one ends with [ErrTaken] and nacks its message; with
// [Publisher] it may have sent it, and the other sends it again.
func (p *Replayer) Drain(ctx context.Context, d Dead) (Status, error) {
	d.setDefaults()
	r := d.request()
	err := errors.Join(r.validate(), d.validate())
	if err == nil {
		err = d.refused(ctx, p)
	}
	if err != nil {
		return Status{}, explain(d.Name, err)
	}
	s, err := p.begin(ctx, r)
	if err == nil && s.State == Running {
		p.log.Info("replay: started or continued", fields(s))
		err = p.drain(ctx, &d, r, &s)
		p.log.Info("replay: stopped", fields(s))
	}
	return s, explain(d.Name, err)
}

// validate returns what is wrong with d and not with its request.
func (d *Dead) validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if d.From == nil || d.Topic == "" {
		problem("a Dead needs From and Topic, to read the dead letters from")
	}
	if d.Limit < 0 {
		problem("Limit %d is negative", d.Limit)
	}
	if d.Idle < 0 {
		problem("Idle %v is negative", d.Idle)
	}
	return errors.Join(problems...)
}

// refused returns an error if the target is the queue of a consumer that IntoSideEffects would have to
// name.
func (d *Dead) refused(ctx context.Context, p *Replayer) error {
	only := d.To.only()
	if only == nil {
		return nil
	}
	consumers, err := admin.New(p.store).Consumers(ctx)
	if err != nil {
		return err
	}
	for _, c := range consumers {
		if c.Name == only.Consumer && c.Epoch == only.Epoch && c.OnReplay == inbox.ReplayRefuse && !slices.Contains(d.IntoSideEffects, c.Name) {
			return fmt.Errorf("%w: %s", ErrSideEffects, c.Name)
		}
	}
	return nil
}

func (p *Replayer) drain(ctx context.Context, d *Dead, r *Request, s *Status) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	subscribed, asked := remaining.Ask(ctx)
	source, err := d.From.Subscribe(subscribed, d.Topic)
	if err != nil {
		return fmt.Errorf("subscribe to %q: %w", d.Topic, err)
	}
	for d.Limit == 0 || s.Sent < d.Limit {
		msg, err := d.next(ctx, source, asked)
		if err != nil {
			return err
		}
		if msg == nil {
			break
		}
		began := time.Now()
		if err := p.pass(ctx, d, r, s, msg); err != nil {
			return err
		}
		r.tell(*s)
		if err := wait(ctx, began, 1, d.PerSecond); err != nil {
			return err
		}
	}
	return p.finish(ctx, r, s)
}

// next returns the next dead letter, or nil if there is none.
func (d *Dead) next(ctx context.Context, source <-chan *message.Message, asked *remaining.Asked) (*message.Message, error) {
	for waited := false; ; waited = true { // the connection may be a new one
		over := time.After(d.Idle)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case msg, open := <-source:
			return came(ctx, msg, open)
		case <-over:
		}
		left, err := asked.Count()
		select {
		case msg, open := <-source: // meanwhile
			return came(ctx, msg, open)
		default:
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("nothing came for %v, and nobody can tell whether %q is empty: %w", d.Idle, d.Topic, err)
		case left == 0:
			return nil, nil //nolint:nilnil // documented
		case waited:
			return nil, fmt.Errorf("nothing came for %v, although %q has %d messages: does it deliver them to somebody else, or can they not be read?",
				2*d.Idle, d.Topic, left)
		}
	}
}

func came(ctx context.Context, msg *message.Message, open bool) (*message.Message, error) {
	if !open {
		return nil, errors.Join(errors.New("the subscriber has closed: call Drain again"), ctx.Err())
	}
	return msg, nil
}

// pass sends one dead letter again, and answers it.
func (p *Replayer) pass(ctx context.Context, d *Dead, r *Request, s *Status, msg *message.Message) error {
	sent := false
	defer func() {
		if sent {
			msg.Ack()
		} else {
			msg.Nack() // also if a function of the service panics
		}
	}()
	err := p.resend(ctx, d, r, s, msg)
	sent = err == nil
	return err
}

// resend sends one dead letter again.
func (p *Replayer) resend(ctx context.Context, d *Dead, r *Request, s *Status, msg *message.Message) error {
	topic, err := d.TopicOf(msg)
	if err != nil {
		return err
	}
	again := msg.Copy() // without the context of the delivery
	mark(again, d.Name)
	items := []item{{topic: topic, msg: again}}
	if err := p.sendFirst(ctx, s, d.To, items); err != nil {
		return err
	}
	ctx, cancel := batchTime(ctx, items)
	defer cancel()
	next := *s
	next.Reached, next.Sent = s.Reached+1, s.Sent+1
	err = p.db.WriteFound(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, p.db.Dialect.Replays.AdvanceReplay, next.Reached, 1, 0, s.row, s.Reached, s.Sent)
		if err := one(result, err); err != nil || !d.To.inTx() {
			return err
		}
		return d.To.put(ctx, items, r.allowed())
	})
	if errors.Is(err, ErrTaken) {
		return p.whyTaken(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("message %q to topic %q: %w", msg.UUID, topic, tooLong(ctx, err))
	}
	*s = next
	return nil
}
