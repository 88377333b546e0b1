package logs_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
)

// acked has stored messages acked that failed: one at once, and one when it comes again, without its context.
func (l *logged) acked() {
	feed := rig.NewFeed()
	sub, err := pubsub.Durable{
		Store: l.store, Consumer: "acked", Mode: pubsub.StoreFirst, Poll: 20 * time.Millisecond,
		MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
	}.Decorate(feed)
	require.NoError(l, err)
	router := rig.NewRouter(l)
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if inbox.Attempt(msg.Context()) > 1 {
				msg.SetContext(routersOnly{msg.Context()})
			}
			produced, err := h(msg)
			if msg.Metadata.Get("ignored") != "" {
				err = nil
			}
			return produced, err
		}
	}, millrace.Inbox{Store: l.store}.Middleware)
	router.AddHandler("acked", "orders", sub, "invoices", &rig.Publisher{}, fails)
	stop := l.run(router)
	for _, ignored := range []string{"yes", ""} {
		msg := secretMessage()
		msg.Metadata.Set("ignored", ignored)
		feed.Send(l, msg)
		require.True(l, rig.Answer(l, msg))
	}
	require.Eventually(l, func() bool {
		found, err := admin.New(l.store).Find(l.Context(), admin.Filter{Consumer: "acked"}, 0, 10)
		return err == nil && len(found) == 1 && strings.Contains(found[0].LastError, "CopyWithContext")
	}, rig.Patience, 5*time.Millisecond)
	stop()
}

// routersOnly is a context that has lost all values but those of Watermill's router.
type routersOnly struct{ context.Context } //nolint:containedctx // it is one

func (c routersOnly) Value(key any) any {
	if strings.HasPrefix(fmt.Sprintf("%T", key), "message.") {
		return c.Context.Value(key)
	}
	return nil
}
