package gate_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
)

func shuffled(messages []*message.Message) []*message.Message {
	mixed := append([]*message.Message{}, messages...)
	rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	return mixed
}

// list is a subscriber that delivers messages, so many at once, each until it is acked.
type list struct {
	messages []*message.Message
	width    int
	start    <-chan struct{} // nil is at once
	drained  func()          // called once all are acked
}

func (l *list) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out, todo := make(chan *message.Message), make(chan *message.Message, len(l.messages))
	for _, msg := range l.messages {
		todo <- msg
	}
	close(todo)
	var hands sync.WaitGroup
	for range l.width {
		hands.Go(func() {
			if l.start != nil {
				<-l.start
			}
			for msg := range todo {
				for acked := false; !acked; {
					own := again(msg)
					own.SetContext(ctx)
					select {
					case out <- own:
					case <-ctx.Done():
						return
					}
					select {
					case <-own.Acked():
						acked = true
					case <-own.Nacked():
					case <-ctx.Done():
						return
					}
				}
			}
		})
	}
	go func() {
		hands.Wait()
		if l.drained != nil && ctx.Err() == nil {
			l.drained()
		}
		<-ctx.Done()
		close(out)
	}()
	return out, nil
}

func (*list) Close() error { return nil }

// errorList keeps what handlers return to the router.
type errorList struct {
	mu   sync.Mutex
	errs []string
}

func (l *errorList) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		if err != nil {
			l.mu.Lock()
			l.errs = append(l.errs, fmt.Sprint(msg.Metadata, ": ", err))
			l.mu.Unlock()
		}
		return out, err
	}
}

func (l *errorList) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string{}, l.errs...)
}

// newRouter returns a router with the middlewares in their order, outside first.
func (b *bed) newRouter(
	store *inbox.Store, gate millrace.VersionGate, outside ...message.HandlerMiddleware,
) *message.Router {
	b.Helper()
	router := rig.NewRouter(b)
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(outside...)
	router.AddMiddleware(millrace.Inbox{Store: store, Options: inbox.Options{TwinWait: rig.Patience}}.Middleware, gate.Middleware)
	return router
}

// route starts a router with one consumer whose subscriber is durable.
func (b *bed) route(
	store *inbox.Store, name string, sub message.Subscriber, gate millrace.VersionGate, h message.HandlerFunc,
	outside ...message.HandlerMiddleware,
) {
	b.Helper()
	sub, err := pubsub.Durable{
		Store: store, Consumer: name, MinBackoff: 10 * time.Millisecond, Poll: 100 * time.Millisecond,
	}.Decorate(sub)
	require.NoError(b, err)
	router := b.newRouter(store, gate, outside...)
	router.AddConsumerHandler(name, "changes", sub, func(msg *message.Message) error {
		_, err := h(msg)
		return err
	})
	rig.Run(b, router)
}
