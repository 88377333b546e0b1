package interop_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/testdb"
)

// A persistent GoChannel delivers everything at once, and again to a router that was
// restarted.
func TestGoChannel(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
		t.Cleanup(func() { assert.NoError(t, channel.Close()) })
		deliver(t, db, broker{
			topic: freshTopic(), publisher: channel, unordered: true,
			subscriber: func() message.Subscriber {
				ctx, cancel := context.WithCancel(context.Background())
				return listener{channel, ctx.Done(), cancel}
			},
		})
	})
}

// listener ends its own subscriptions when it is closed, and not the channel.
type listener struct {
	channel *gochannel.GoChannel
	closed  <-chan struct{}
	close   context.CancelFunc
}

func (l listener) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-l.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return l.channel.Subscribe(ctx, topic)
}

func (l listener) Close() error {
	l.close()
	return nil
}
