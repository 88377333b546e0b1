package middleware

import (
	"context"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// naming finds the name of the handler behind a middleware.
type naming struct {
	known atomic.Pointer[string] // the router's, from the first message that has one; "" if there are several
}

// of returns the router's name of the handler that gets the message of ctx. A stored message that a
// router's subscriber decorator delivers has none. Unless the consumer has a name anyway, it then is
// the one that is known, so that the inbox sees what was stored for another handler; or else that of
// the consumer it was stored for.
func (n *naming) of(ctx context.Context, consumer string) string {
	name := message.HandlerNameFromCtx(ctx)
	if name != "" {
		n.learn(name)
		return name
	}
	if consumer != "" {
		return ""
	}
	stored := inbox.Internals{}.StoredFor(ctx)
	if known := n.known.Load(); stored != "" && known != nil && *known != "" {
		return *known
	}
	return stored
}

func (n *naming) learn(name string) {
	known := n.known.Load()
	switch {
	case known == nil:
		if first := name; !n.known.CompareAndSwap(nil, &first) {
			n.learn(name)
		}
	case *known != name && *known != "": // one handler function serves two handlers
		n.known.Store(new(string))
	}
}
