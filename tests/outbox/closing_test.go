package outbox_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A router closes its handlers' publishers before the handlers that run have returned. Where
// the outbox is such a publisher, they must still be able to store what they return, and so
// must the rest of the service that shares it.
func TestAHandlerInFlightFinishesAfterTheRouterClosedTheOutbox(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite"))
	store := rig.NewStore(t, p.db.DB, inbox.Config{})
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	out := &closable{Publisher: p.out, closed: make(chan struct{})}
	router := rig.NewRouter(t)
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(millrace.Inbox{Store: store, Outbox: p.out}.Middleware)
	running := make(chan struct{})
	router.AddHandler("billing", "orders", channel, "invoices", out,
		func(msg *message.Message) ([]*message.Message, error) {
			close(running) // a second run would panic
			<-out.closed
			return []*message.Message{message.NewMessage("invoice", msg.Payload)}, nil
		})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	require.NoError(t, channel.Publish("orders", message.NewMessage("order", nil)))
	<-running
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)
	require.NoError(t, store.Close(t.Context()))
	require.Equal(t, 1, p.rows(), "the invoice is stored")
}

// closable tells when the router closes it.
type closable struct {
	message.Publisher
	closed chan struct{}
}

func (c *closable) Close() error {
	err := c.Publisher.Close()
	close(c.closed)
	return err
}

func TestAClosedOutboxCommitsNothingByItself(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite")) // standalone
	require.NoError(t, p.out.Close())
	require.ErrorIs(t, p.out.Publish("orders", letters("", 1)...), outbox.ErrClosed)
	require.Zero(t, p.rows())
	p.send("orders", "", 1)
	require.Equal(t, 1, p.rows(), "a transaction is not the publisher's to end")
}
