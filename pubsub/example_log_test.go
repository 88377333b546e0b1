package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
)

// onceParked leaves out the line that the router logs for each attempt that fails: the queue logs the message once it is
// parked.
type onceParked struct{ slog.Handler }

func (h onceParked) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "Handler returned error" {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h onceParked) WithAttrs(attrs []slog.Attr) slog.Handler {
	return onceParked{h.Handler.WithAttrs(attrs)}
}

func (h onceParked) WithGroup(name string) slog.Handler { return onceParked{h.Handler.WithGroup(name)} }

// Three messages fail twice each, and are parked: that is three lines, not nine.
func ExampleDurable_log() {
	db, other, done := exampleStore()
	defer done()
	check(other.Close(context.Background()))
	errorsOnly := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelError, ReplaceAttr: withReason})
	logger := watermill.NewSlogLogger(slog.New(onceParked{errorsOnly}))
	parked := make(chan struct{}, 3)
	store, err := inbox.NewStore(db, inbox.Config{
		Logger: logger, Observers: []inbox.Observer{inbox.On(func(context.Context, inbox.Event) { parked <- struct{}{} }, inbox.KindParked)},
	})
	check(err)
	defer func() { check(store.Close(context.Background())) }()

	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	sub, err := pubsub.Durable{Store: store, Consumer: "accounts", MaxAttempts: 2, MinBackoff: 1, MaxBackoff: 1}.Decorate(broker)
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("accounts", "orders", sub, func(*message.Message) error { return errors.New("no such account") })
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()
	for i := range 3 {
		check(broker.Publish("orders", message.NewMessage(fmt.Sprint("order-", i), nil)))
	}
	for range 3 {
		<-parked
	}
	check(router.Close())
	check(<-stopped)
	// Output:
	// level=ERROR msg="inbox: message parked for an operator" reason=attempts
	// level=ERROR msg="inbox: message parked for an operator" reason=attempts
	// level=ERROR msg="inbox: message parked for an operator" reason=attempts
}

func withReason(_ []string, a slog.Attr) slog.Attr {
	if !slices.Contains([]string{slog.LevelKey, slog.MessageKey, "reason"}, a.Key) {
		return slog.Attr{}
	}
	return a
}
