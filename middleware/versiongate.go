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
// twice, none left out, none too late. It stands inside Inbox, and its zero value works:
//
//	millrace.Inbox{Store: store}.AddTo(router)
//	router.AddMiddleware(millrace.VersionGate{}.Middleware)
//
// The version that a message brings is compared with the one its aggregate has, which is
// locked and advanced in the handler's transaction. The next one runs the handler; an older
// one is acked; one that comes too early waits. Only its own aggregate waits.
type VersionGate struct {
	// Version says which version of which aggregate a message brings. Defaults to
	// inbox.VersionFromMetadata, what the outbox stamps or else CloudEvents' partitionkey and
	// sequence. A panic is one of the handler.
	Version inbox.VersionFunc

	// Optional lets messages through that name no version. By default they fail, and no
	// other attempt would help them.
	Optional bool

	// OnGap is what happens to a message whose predecessor was not applied. Defaults to
	// inbox.GapHold, which needs pubsub.Durable around the subscriber.
	OnGap inbox.OnGap

	// GapWait is how long such a message waits in memory first, for sources that deliver
	// others meanwhile. It holds nothing. Defaults to 0.
	GapWait time.Duration

	// GapFor is how long a gap may last with inbox.GapFail, from the first time that the message is
	// sent back; it is sent back three times at least. Defaults to 1 minute.
	GapFor time.Duration

	// First is the version with which an aggregate begins. Defaults to 1.
	First inbox.First

	// Starts says that a message may follow any older version, or begin its aggregate: a
	// snapshot, or the creation of something that was deleted. It may be called more than once for
	// a message. A panic is one of the handler.
	Starts func(msg *message.Message) bool

	// OnBeforeFirst is what happens to a message below the first version of its aggregate.
	// Defaults to parking it.
	OnBeforeFirst inbox.OnVersion

	// OnCollision is what happens to a message with the version that its aggregate has from
	// another message. Defaults to parking it.
	OnCollision inbox.OnVersion

	// MaxHeld bounds how many messages an aggregate may hold; more are parked. Defaults to
	// 1000: enough for a burst, and little enough to be looked through.
	MaxHeld int

	// HeldFor bounds how long a message is held before it is parked. Defaults to 24 hours:
	// time enough to repair a producer.
	HeldFor time.Duration

	// Store is for a gate without Inbox, which then has a transaction, and a memory of message
	// ids, of its own, with Inbox's defaults; its router needs the Store's plugin, too. Inside Inbox
	// it may be left out.
	Store *inbox.Store

	// Consumer and Epoch are those of Inbox, for a gate without one.
	Consumer string
	Epoch    int
}

// Middleware wraps h. A wrong setting is returned for every message.
func (g VersionGate) Middleware(h message.HandlerFunc) message.HandlerFunc {
	gate, err := inbox.Internals{}.NewGate(g.config())
	if invalid := g.Validate(); invalid != nil {
		err = invalid
	}
	if err != nil {
		if g.Store != nil {
			g.Store.Logger().Error("middleware.VersionGate does not work", err, nil)
		}
		return func(*message.Message) ([]*message.Message, error) { return nil, err }
	}
	gated := func(msg *message.Message) ([]*message.Message, error) {
		if run, err := gate.Admit(msg); !run {
			return nil, err
		}
		return h(msg)
	}
	alone := sync.OnceValue(func() message.HandlerFunc {
		return Inbox{Store: g.Store, Consumer: g.Consumer, Options: inbox.Options{Epoch: g.Epoch}}.Middleware(gated)
	})
	return func(msg *message.Message) ([]*message.Message, error) {
		switch {
		case inbox.Internals{}.Claimed(msg.Context()):
			return gated(msg)
		case skipped(msg.Context()):
			return h(msg)
		case g.Store == nil:
			return nil, errUngated
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
		GapWait:       g.GapWait,
		GapFor:        g.GapFor,
		First:         g.First,
		Starts:        g.Starts,
		OnBeforeFirst: g.OnBeforeFirst,
		OnCollision:   g.OnCollision,
		MaxHeld:       g.MaxHeld,
		HeldFor:       g.HeldFor,
	}
}
