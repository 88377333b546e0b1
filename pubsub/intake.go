package pubsub

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// intake receives what the source of one subscription delivers.
type intake struct {
	Durable
	queue *inbox.Queue
	topic string
	in    <-chan *message.Message
	out   chan<- *message.Message

	looked  <-chan struct{} // closed when it is known whether the consumer is paused
	answers *sync.WaitGroup
}

// run passes messages on or stores them until the source ends. The handler may still answer the
// messages that it has then.
func (i *intake) run(ctx context.Context) {
	arrived := make(chan *message.Message, mostAtOnce) // room for those that arrive while others are stored
	var storing sync.WaitGroup
	storing.Go(func() { i.store(ctx, arrived) })
	defer storing.Wait()
	defer close(arrived)
	i.awaitLook(ctx)
	for msg := range i.in {
		i.take(ctx, msg, arrived)
	}
}

// awaitLook waits until it is known whether the consumer is paused, but not for a database that is away.
func (i *intake) awaitLook(ctx context.Context) {
	timer := time.NewTimer(answerFor)
	defer timer.Stop()
	select {
	case <-i.looked:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// take passes a message on, or has it stored.
func (i *intake) take(ctx context.Context, msg *message.Message, arrived chan<- *message.Message) {
	taken := false
	defer i.refuse(ctx, &taken, msg)
	if i.Mode == StoreFirst || i.redelivered(msg) || i.early(msg) || i.queue.Paused() {
		arrived <- msg
	} else {
		i.pass(ctx, msg)
	}
	taken = true
}

// refuse is deferred where a function of the service may end the goroutine: it gives the message
// back to its source.
func (i *intake) refuse(ctx context.Context, taken *bool, msg *message.Message) {
	if !*taken {
		i.calm(ctx)
		msg.Nack()
	}
}

// redelivered calls the user's function. If that panics, the message counts as redelivered, so that
// it is stored and its attempts are counted.
func (i *intake) redelivered(msg *message.Message) (is bool) {
	return !i.queue.Call(func() { is = i.Redelivered(msg) }) || is
}

// early reports whether the time of a message has not come. If NotBefore panics, the message counts
// as early, and is stored for an operator.
func (i *intake) early(msg *message.Message) (early bool) {
	defer func() {
		if recover() != nil {
			early = true
		}
	}()
	return i.NotBefore != nil && time.Now().Before(i.NotBefore(msg))
}

// pass delivers a message straight through.
func (i *intake) pass(ctx context.Context, msg *message.Message) {
	c, fail := i.queue.Straight(i.topic, msg) //nolint:contextcheck // the message brings its own
	select {
	case i.out <- c:
	case <-ctx.Done():
		msg.Nack()
		return
	}
	i.answers.Go(func() {
		select {
		case <-c.Acked():
			msg.Ack()
		case <-c.Nacked():
			answered := false
			defer i.refuse(ctx, &answered, msg)
			answered = i.queue.Call(func() { i.failed(ctx, msg, fail) })
		}
	})
}

// keeping stores a message whose handler failed; see [inbox.Queue.Straight].
type keeping = func(context.Context) (kept bool, err error)

// failed stores a message whose handler failed. If that is not possible, or the message has to
// stay at its source, it nacks the message.
func (i *intake) failed(ctx context.Context, msg *message.Message, fail keeping) {
	stored, err := i.keep(ctx, fail)
	if err != nil {
		i.log(msg).Error("pubsub: a failed message could not be stored; its source has to redeliver it", err, nil)
		i.calm(ctx)
	}
	if !stored && err == nil && msg.Context().Err() != nil && ctx.Err() == nil {
		i.log(msg).Info("pubsub: the source gave a message up while its handler ran, and has to redeliver it; no attempt is counted", nil)
	}
	if !stored {
		msg.Nack()
		return
	}
	msg.Ack()
}

// keep stores a message whose handler failed, also while the service closes.
func (i *intake) keep(ctx context.Context, fail keeping) (stored bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerFor)
	defer cancel()
	return fail(ctx)
}

// store stores messages in batches of those that arrived meanwhile, and nacks those that cannot be
// stored.
func (i *intake) store(ctx context.Context, arrived <-chan *message.Message) {
	for msg := range arrived {
		batch := gather(msg, arrived)
		if apart(i.queue, func() { i.storeBatch(ctx, batch) }) {
			continue
		}
		for _, msg := range batch { // one of them is the reason
			taken := apart(i.queue, func() { i.storeBatch(ctx, []*message.Message{msg}) })
			i.refuse(ctx, &taken, msg)
		}
	}
}

// apart does work in a goroutine of its own, which a function of the service may end, and reports
// whether it returned.
func apart(q *inbox.Queue, work func()) (returned bool) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		returned = q.Call(work)
	}()
	<-ended
	return returned
}

func (i *intake) storeBatch(ctx context.Context, batch []*message.Message) {
	handled, err := i.put(ctx, batch...)
	if err == nil {
		i.acked(ctx, batch, handled)
		return
	}
	for n, msg := range batch { // one of them may be the reason
		if len(batch) > 1 {
			handled, err = i.put(ctx, msg)
		}
		for tries := 1; i.queue.Unanswered(err) && ctx.Err() == nil; tries++ {
			if tries == 1 {
				i.log(msg).Error("pubsub: a message could not be stored; it waits, unacked, for an answer", err, nil)
			}
			rest(ctx, min(i.Poll, afterError))
			handled, err = i.put(ctx, msg)
		}
		if err == nil {
			i.acked(ctx, batch[n:n+1], handled)
			continue
		}
		if ctx.Err() == nil {
			i.log(msg).Error("pubsub: a message could not be stored; its source has to redeliver it", err, nil)
			i.calm(ctx)
		}
		msg.Nack()
	}
}

// acked acks messages that were stored. It passes on those that are handled already, which are not
// stored, so that what they produced is published: no handler runs for them.
func (i *intake) acked(ctx context.Context, batch, handled []*message.Message) {
	for _, msg := range batch {
		if !slices.Contains(handled, msg) {
			msg.Ack()
		}
	}
	for _, msg := range handled {
		i.pass(ctx, msg)
	}
}

func (i *intake) put(ctx context.Context, msgs ...*message.Message) (handled []*message.Message, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerFor)
	defer cancel()
	return i.queue.PutOpen(ctx, i.topic, msgs...)
}

// calm waits before a nack, so that the source does not redeliver in a tight loop. Others wait meanwhile, so it is not for
// long, whatever the pause between two attempts of a handler.
func (i *intake) calm(ctx context.Context) { rest(ctx, min(i.queue.Config().MinBackoff, afterError)) }

// rest waits until ctx ends, at most for a time.
func rest(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (i *intake) log(msg *message.Message) watermill.LoggerAdapter {
	return i.Store.Logger().With(watermill.LogFields{
		"consumer": i.queue.Config().Consumer, "epoch": i.Epoch, "topic": i.topic, "message_uuid": msg.UUID,
	})
}
