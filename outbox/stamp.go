package outbox

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/reserved"
)

// Metadata fields in which a message says which version of which aggregate it brings.
// middleware.VersionGate reads them.
const (
	AggregateField = reserved.Aggregate
	VersionField   = reserved.Version
)

// StampFunc says which version of which aggregate a message brings; the aggregate is empty if
// it brings none.
type StampFunc func(topic string, msg *message.Message) (aggregate string, version int64, err error)

// Stamp writes into the metadata of msg which version of aggregate it brings. Whoever changes
// the aggregate numbers its versions without a gap, in the same transaction.
func Stamp(msg *message.Message, aggregate string, version int64) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	msg.Metadata[AggregateField] = aggregate
	msg.Metadata[VersionField] = strconv.FormatInt(version, 10)
}

// ByAggregate takes the aggregate of a message's stamp as its order key: the versions of an
// aggregate then reach the broker in order.
func ByAggregate() KeyFunc { return ByMetadata(AggregateField) }

// stamped returns a copy of msg with the stamp of Config.Stamp, or msg where that adds none.
func (p *Publisher) stamped(topic string, msg *message.Message) (*message.Message, error) {
	if p.config.Stamp == nil || msg.Metadata[AggregateField] != "" {
		return msg, nil
	}
	aggregate, version, err := p.config.Stamp(topic, msg)
	if err == nil {
		err = possible(aggregate, version)
	}
	if err != nil {
		return nil, fmt.Errorf("stamp: %w", err)
	}
	if aggregate == "" {
		return msg, nil
	}
	c := message.NewMessage(msg.UUID, msg.Payload)
	c.Metadata = maps.Clone(msg.Metadata)
	c.SetContext(msg.Context())
	Stamp(c, aggregate, version)
	return c, nil
}

// possible returns an error for a version that no aggregate can have.
func possible(aggregate string, version int64) error {
	if aggregate != "" && version < 0 {
		return fmt.Errorf("version %d of aggregate %q is negative", version, aggregate)
	}
	return nil
}

// Versioned is a command or an event that knows which version of which aggregate it brings;
// its aggregate is empty if it brings none.
type Versioned interface {
	AggregateID() string
	AggregateVersion() int64
}

// Marshaler stamps what a Watermill CQRS marshaler marshals, if it is [Versioned]:
//
//	cqrs.EventBusConfig{Marshaler: outbox.Marshaler{CommandEventMarshaler: cqrs.JSONMarshaler{}}}
type Marshaler struct{ CommandEventMarshaler }

// CommandEventMarshaler is the interface of that name in Watermill's package cqrs. This package
// does not import cqrs: every service with an outbox would depend on protobuf.
type CommandEventMarshaler interface {
	Marshal(v any) (*message.Message, error)
	Unmarshal(msg *message.Message, v any) error
	Name(v any) string
	NameFromMessage(msg *message.Message) string
}

// Marshal marshals v and stamps the message.
func (m Marshaler) Marshal(v any) (*message.Message, error) {
	msg, err := m.CommandEventMarshaler.Marshal(v)
	if err != nil {
		return nil, err
	}
	versioned, ok := v.(Versioned)
	if !ok || versioned.AggregateID() == "" {
		return msg, nil
	}
	aggregate, version := versioned.AggregateID(), versioned.AggregateVersion()
	if err := possible(aggregate, version); err != nil {
		return nil, fmt.Errorf("outbox: marshal %T: %w", v, err)
	}
	Stamp(msg, aggregate, version)
	return msg, nil
}
