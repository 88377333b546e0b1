package inbox

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/requests"
	"github.com/millrace-go/millrace/internal/stored"
)

// subject is the message that a context belongs to, as [ID] and [Step] need it.
type subject struct {
	store     *Store // which records the steps; nil if the leases are those of no Store
	namespace string
	name      stored.Name
	id        []byte // as the key is stored
	formerID  []byte // the same under FormerKey; nil if it has none
	msg       *message.Message
	retention time.Duration
	former    bool // ids go by formerID
	inTx      bool // a transaction of the inbox is open
	event     func(reason string) Event
}

type subjectKey struct{}

// stepOwner owns the context of a step of owner's message.
type stepOwner struct {
	owner  any
	former bool // the step was begun under the former key of the message
}

// subjectOf returns the message that ctx belongs to, the innermost if there are several.
func subjectOf(ctx context.Context) (*subject, error) {
	return subjectBy(ctx.Value(subjectKey{}))
}

func subjectBy(owner any) (*subject, error) {
	switch owner := owner.(type) {
	case *claim:
		if owner.ambient.Open() {
			return owner.subject(true), nil
		}
	case *preparation:
		if !owner.over.Load() {
			return owner.claim.subject(false), nil
		}
	case *leaseDelivery:
		if !owner.over.Load() {
			return owner.subject(), nil
		}
	case stepOwner:
		s, err := subjectBy(owner.owner)
		if err == nil {
			s.former = owner.former
		}
		return s, err
	}
	return nil, ErrNoMessage
}

func (d *delivery) subject(inTx bool) *subject {
	s := d.consumer.store
	return &subject{
		store: s, namespace: s.config.Namespace, name: d.consumer.name(), id: d.id, formerID: d.formerID, msg: d.msg,
		retention: d.consumer.config.Retention, inTx: inTx, event: d.event,
	}
}

func (l *leaseDelivery) subject() *subject {
	c := l.consumer
	s := &subject{
		store: c.leases.owner, name: stored.Name{Name: c.config.Name, Epoch: c.config.Epoch}, id: []byte(l.id.ID), msg: l.msg,
		retention: c.config.Retention, event: l.event,
	}
	if s.store != nil {
		s.namespace = s.store.config.Namespace
	}
	return s
}

// Value also answers for the claim, the requests of its handler and the original message.
func (c handlerContext) Value(key any) any {
	switch key.(type) {
	case subjectKey, requests.Key, original.Key, attemptKey:
		if c.claim == nil { // it belongs to a batch, not to one message
			return nil
		}
	}
	switch key.(type) {
	case subjectKey:
		return c.claim
	case requests.Key:
		return &c.claim.visit.requests
	case original.Key:
		return c.claim.as.Came
	}
	return c.Context.Value(key)
}

// preparation is a run of Before.
type preparation struct {
	claim *claim
	over  atomic.Bool
}

// preparationContext is the context of Before.
type preparationContext struct {
	context.Context //nolint:containedctx // it is one

	preparation *preparation
}

// Value also answers for the preparation and the requests of the message.
func (c preparationContext) Value(key any) any {
	switch key.(type) {
	case subjectKey:
		return c.preparation
	case requests.Key:
		return &c.preparation.claim.visit.requests
	}
	return c.Context.Value(key)
}
