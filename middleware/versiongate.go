package middleware

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// VersionGate applies the messages of each aggregate in the order of their versions: none
// twice, none left out, none too late. It goes inside Inbox, and its zero value works:
//
//	millrace.Inbox{Store: store}.AddTo(router)
//	router.AddMiddleware(millrace.VersionGate{}.Middleware)
//
// The gate compares the version that a message brings with the one its aggregate has, which it
// locks and advances in the handler's transaction. It runs the handler for the next version, acks
// an older one, and has a later one wait: first in memory, if the source has several messages in
// flight, then as OnGap says. Only that aggregate waits.
type VersionGate struct {
	// Version says which version of which aggregate a message brings. Defaults to
	// inbox.VersionFromMetadata, which reads the outbox's stamp or else CloudEvents' partitionkey
	// and sequence. The gate may call it more than once for a message, and before the middlewares
	// between Inbox and gate. A panic in it counts as one of the handler.
	Version inbox.VersionFunc

	// Optional lets messages through that name no version. By default they fail, and retrying does
	// not help.
	Optional bool

	// OnGap says what happens to a message whose predecessor was not applied. Defaults to
	// inbox.GapHold, which needs pubsub.Durable around the subscriber.
	OnGap inbox.OnGap

	// GapFor is how long a gap may last with inbox.GapFail, counted from when the gate first sends
	// the message back; the gate sends it back at least three times. Defaults to 1 minute.
	GapFor time.Duration

	// First is the version with which an aggregate begins. Defaults to 1.
	First inbox.First

	// Starts reports whether a message may follow any older version, or begin its aggregate: a
	// snapshot, or the creation of something that was deleted. It needs a version that no other message
	// has, or it is a collision. The gate may call Starts more than once for a message. A panic in it
	// counts as one of the handler.
	Starts func(msg *message.Message) bool

	// OnBeforeFirst says what happens to a message below the first version of its aggregate.
	// Defaults to parking it.
	OnBeforeFirst inbox.OnVersion

	// OnCollision says what happens to a message with a version that its aggregate already has from
	// another message. Defaults to parking it.
	OnCollision inbox.OnVersion

	// MaxHeld bounds how many messages of an aggregate the gate holds; it parks more. Defaults to
	// 1000: enough for a burst, and few enough for a person to look through.
	MaxHeld int

	// HeldFor bounds how long the gate holds a message before it parks it. Defaults to 24 hours:
	// enough time to repair a producer.
	HeldFor time.Duration

	// Store is for a gate without Inbox. Such a gate has its own transaction and its own claims,
	// with Inbox's defaults; its router needs the Store's plugin too. Inside Inbox, leave it out.
	Store *inbox.Store

	// Consumer and Epoch are those of Inbox, for a gate without one.
	Consumer string
	Epoch    int
}

// Middleware wraps h. It returns a wrong setting as the error for every message.
func (g VersionGate) Middleware(h message.HandlerFunc) message.HandlerFunc {
	admit, err := inbox.Internals{}.NewGate(g.config())
	if invalid := g.Validate(); invalid != nil {
		err = invalid
	}
	if err != nil {
		if g.Store != nil {
			g.Store.Logger().Error("middleware.VersionGate does not work", err, nil)
		}
		return inbox.Internals{}.Refuse(err)
	}
	gated := func(msg *message.Message) ([]*message.Message, error) {
		if run, err := admit(msg); !run {
			return nil, err
		}
		return h(msg)
	}
	ungated := inbox.Internals{}.Refuse(errUngated)
	alone := sync.OnceValue(func() message.HandlerFunc {
		return Inbox{Store: g.Store, Consumer: g.Consumer, Options: inbox.Options{Epoch: g.Epoch}}.Middleware(gated)
	})
	return func(msg *message.Message) ([]*message.Message, error) {
		switch {
		case inbox.Internals{}.Claimed(msg):
			return gated(msg)
		case skipped(msg.Context()):
			return h(msg)
		case g.Store == nil:
			return ungated(msg)
		}
		return alone()(msg)
	}
}

var errUngated = errors.New("middleware.VersionGate: put it inside middleware.Inbox, or give it a Store")

// Validate returns every wrong setting at once.
func (g VersionGate) Validate() error {
	if err := g.config().Validate(); err != nil {
		return fmt.Errorf("middleware.VersionGate: invalid settings: %w", err)
	}
	return nil
}

func (g VersionGate) config() inbox.GateConfig {
	return inbox.GateConfig{
		Version:       g.Version,
		Optional:      g.Optional,
		OnGap:         g.OnGap,
		GapFor:        g.GapFor,
		First:         g.First,
		Starts:        g.Starts,
		OnBeforeFirst: g.OnBeforeFirst,
		OnCollision:   g.OnCollision,
		MaxHeld:       g.MaxHeld,
		HeldFor:       g.HeldFor,
	}
}
