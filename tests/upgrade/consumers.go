package main

import (
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
)

// router has one consumer for each way of storing something, whose topic has its name.
func (s *service) router(out *outbox.Publisher) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddPlugin(s.store.Plugin())
	plain := millrace.Inbox{Store: s.store, Timeout: timeout}
	relayed, kept, journaled := plain, plain, plain
	relayed.Outbox, kept.RecordFailures, journaled.Journal = out, true, true
	straight := &pubsub.Durable{Mode: pubsub.StoreOnFailure}
	first := &pubsub.Durable{Mode: pubsub.StoreFirst}
	for name, c := range map[string]struct {
		queue      *pubsub.Durable
		middleware []message.HandlerMiddleware
	}{
		"seen":     {nil, []message.HandlerMiddleware{plain.Middleware}},
		"outcomes": {nil, []message.HandlerMiddleware{plain.Middleware}},
		"relayed":  {nil, []message.HandlerMiddleware{relayed.Middleware}},
		"recorded": {straight, []message.HandlerMiddleware{kept.Middleware}},
		"failing":  {straight, []message.HandlerMiddleware{s.hang, plain.Middleware}},
		"settling": {first, []message.HandlerMiddleware{journaled.Middleware}},
		"waiting":  {first, []message.HandlerMiddleware{plain.Middleware}},
		"gated":    {straight, []message.HandlerMiddleware{plain.Middleware, millrace.VersionGate{}.Middleware}},
		"packed":   {straight, []message.HandlerMiddleware{unpack, plain.Middleware}},
		"opened":   {straight, []message.HandlerMiddleware{plain.Middleware, unpack}},
	} {
		s.feeds[name] = make(chan *message.Message)
		var source message.Subscriber = subscriber{s}
		if c.queue != nil {
			queue := *c.queue
			queue.Store, queue.Consumer, queue.Lease, queue.Poll = s.store, name, lease, 50*time.Millisecond
			queue.MinBackoff, queue.MaxBackoff, queue.MaxAttempts = 2*time.Second, 2*time.Second, 1000
			if source, err = queue.Decorate(source); err != nil {
				return nil, err
			}
		}
		router.AddHandler(name, name, source, "produced", publisher{s}, s.handle).AddMiddleware(c.middleware...)
	}
	return router, nil
}

// The lease of a process that was killed is waited for.
const timeout, lease = 2 * time.Second, 4 * time.Second

// hang fails a message that is to stay with a handler once, so that it is stored, and then never answers.
func (s *service) hang(next message.HandlerFunc) message.HandlerFunc {
	var failed sync.Map // by UUID
	return func(msg *message.Message) ([]*message.Message, error) {
		if s.Ill && msg.Metadata["fails"] == "hangs" {
			if _, again := failed.LoadOrStore(msg.UUID, true); !again {
				return nil, errors.New("the first time")
			}
			s.say(process.Event{Kind: process.At, UUID: msg.UUID, Point: process.InHandler})
			select {}
		}
		return next(msg)
	}
}

// unpack is a middleware that changes the payload for whoever is inside of it.
func unpack(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		packed, found := strings.CutPrefix(string(msg.Payload), "packed ")
		if !found {
			return nil, errors.New("the payload was unpacked before")
		}
		payload, err := base64.StdEncoding.DecodeString(packed)
		if err != nil {
			return nil, err
		}
		msg.Payload = payload
		return next(msg)
	}
}

// handle notes the message, and returns another one if it is to.
func (s *service) handle(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, tx.Rebind(`INSERT INTO effects (consumer, uuid, payload) VALUES (?, ?, ?)`),
		message.HandlerNameFromCtx(ctx), msg.UUID, string(msg.Payload))
	if err != nil {
		return nil, err
	}
	switch fails := msg.Metadata["fails"]; {
	case !s.Ill:
	case fails == "later":
		return nil, errors.New("not yet")
	case fails == "for good":
		return nil, inbox.Terminal(errors.New("for good"))
	}
	if msg.Metadata["produces"] == "" {
		return nil, nil
	}
	next := message.NewMessage(watermill.NewUUID(), msg.Payload)
	next.Metadata = message.Metadata{"for": msg.UUID, "account": msg.Metadata["account"]}
	return []*message.Message{next}, nil
}
