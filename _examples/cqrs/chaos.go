package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
)

// careless is a broker that delivers half of its messages twice.
type careless struct{ *gochannel.GoChannel }

// newCareless returns a gochannel whose Publish returns when the messages are acked: a
// relay then deletes none before, and none is lost with the process.
func newCareless() careless {
	return careless{gochannel.NewGoChannel(
		gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})}
}

func (c careless) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if rand.IntN(2) == 0 {
			msgs = append(msgs, msg)
		}
	}
	return c.GoChannel.Publish(topic, msgs...)
}

// unlucky lets one run in ten fail after the handler has done its work.
func unlucky(handler message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := handler(msg)
		if err == nil && rand.IntN(10) == 0 {
			err = errors.New("out of luck")
		}
		return produced, err
	}
}

// counter counts what the inbox decides.
type counter struct{ completed, duplicates, failures atomic.Int64 }

func (c *counter) Observe(_ context.Context, e inbox.Event) {
	switch e.Kind {
	case inbox.KindCompleted:
		c.completed.Add(1)
	case inbox.KindDuplicate:
		c.duplicates.Add(1)
	case inbox.KindFailed:
		c.failures.Add(1)
	}
}
