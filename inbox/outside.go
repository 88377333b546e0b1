package inbox

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"
)

// outside calls a function of the service's in a goroutine of the queue's, where a panic would end the
// process: it is logged and counted, and the queue goes on.
func (q *Queue) outside(call func()) {
	defer func() {
		if r := recover(); r != nil {
			q.store.panics.Add(1)
			q.store.log.Error("inbox: a function of the service panicked in the queue, which goes on",
				fmt.Errorf("panic: %v\n%s", r, debug.Stack()), q.fields())
		}
	}()
	call()
}

// describe asks for the type of a message. One for which Describe panics has none.
func (q *Queue) describe(msg *message.Message) (kind, version string) {
	q.outside(func() { kind, version = q.config.Describe(msg) })
	return kind, version
}

// tellCollision tells the observers of a collision.
func (q *Queue) tellCollision(ctx context.Context, e Event) {
	q.outside(func() { q.store.observeCollision(ctx, e) })
}
