package rabbitmq_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// What a broker may answer to five messages, in any order, and what each answer means.
func TestPublishReadsEachConfirmForItself(t *testing.T) {
	const (
		refused = "basic.nack"
		lost    = "it was sent but not confirmed"
	)
	for name, c := range map[string]struct {
		answer  func(w *frameWriter)
		want    [5]string     // empty: confirmed
		timeout time.Duration // 0: none that ends the call
	}{
		"a nack before an ack of all": {
			answer: func(w *frameWriter) { w.nack(3, false); w.ack(5, true) }, want: [5]string{2: refused},
		},
		"a nack of several before an ack of all": {
			answer: func(w *frameWriter) { w.ack(1, false); w.nack(3, true); w.ack(5, true) }, want: [5]string{1: refused, 2: refused},
		},
		"an ack before a nack of all": {
			answer: func(w *frameWriter) { w.ack(2, false); w.nack(5, true) },
			want:   [5]string{refused, "", refused, refused, refused},
		},
		"a nack of all before an ack of all": {
			answer: func(w *frameWriter) { w.nack(5, true); w.ack(5, true) },
			want:   [5]string{refused, refused, refused, refused, refused},
		},
		"backwards": {
			answer: func(w *frameWriter) {
				for tag := uint64(5); tag > 0; tag-- {
					if tag%2 == 0 {
						w.nack(tag, false)
					} else {
						w.ack(tag, false)
					}
				}
			},
			want: [5]string{1: refused, 3: refused},
		},
		"a channel that is closed": {
			answer: func(w *frameWriter) { w.ack(2, true); w.closeChannel(541, "INTERNAL_ERROR") }, want: [5]string{2: lost, lost, lost},
		},
		"a channel that is closed behind a hole": {
			answer: func(w *frameWriter) { w.ack(1, false); w.ack(3, false); w.closeChannel(541, "INTERNAL_ERROR") },
			want:   [5]string{1: lost, 3: lost, 4: lost},
		},
		"a connection that is lost": {
			answer: func(w *frameWriter) { w.ack(4, false); w.hangUp() }, want: [5]string{lost, lost, lost, "", lost},
		},
		"silence about some": {
			answer: func(w *frameWriter) { w.nack(2, false); w.ack(4, false) }, want: [5]string{lost, refused, lost, "", lost},
			timeout: 5 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := rabbitmq.NewQueueConfig(pose(t, 5, c.answer), rabbitmq.Queues{})
			p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: cmp.Or(c.timeout, rig.Patience)})
			errs := partial(t, p.Publish("topic", newMessages(5)...))
			for i, want := range c.want {
				if want == "" {
					assert.NoError(t, errs[i], "message %d", i+1)
					continue
				}
				assert.ErrorContains(t, errs[i], want, "message %d", i+1)
				assert.NotErrorIs(t, errs[i], outbox.ErrPermanent)
			}
		})
	}
}

// A full queue refuses some messages among many that it takes, and RabbitMQ confirms them in
// whatever order.
func TestPublishReportsNothingThatAFullQueueRefused(t *testing.T) {
	t.Parallel()
	uri := uri(t)
	a := newAdmin(t, uri)
	topic := a.queue(amqp091.Table{"x-max-length": 45, "x-overflow": "reject-publish"})
	broker := rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{})
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	const calls, perCall = 40, 500
	reported, refused := map[string]bool{}, 0
	var deliveries <-chan amqp091.Delivery
	for n := range calls {
		if n == 1 { // the first call fills the queue for certain
			var err error
			deliveries, err = a.channel().ConsumeWithContext(t.Context(), topic, "", true, false, false, false, nil)
			require.NoError(t, err)
		}
		messages := newMessages(perCall)
		errs := make([]error, perCall)
		if err := p.Publish(topic, messages...); err != nil {
			errs = partial(t, err)
		}
		for i, err := range errs {
			if err == nil {
				reported[messages[i].UUID] = true
			} else {
				require.ErrorContains(t, err, "basic.nack")
				refused++
			}
		}
	}
	require.Positive(t, refused, "the queue was never full")
	arrived := 0
	for len(reported) > 0 {
		select {
		case d := <-deliveries:
			if reported[d.MessageId] {
				arrived++
			}
			delete(reported, d.MessageId)
		case <-time.After(rig.Patience):
			require.Fail(t, fmt.Sprintf("%d messages were reported as published, %d of them never arrived; %d were refused",
				arrived+len(reported), len(reported), refused))
		}
	}
}
