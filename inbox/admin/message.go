package admin

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Message is an open message. It is stored whole. Of a row that cannot be read, which somebody must
// have changed, there are only the ID and Unreadable.
type Message struct {
	ID           int64 // of the row, for [Admin.Retry] and [Admin.Discard]
	Consumer     string
	Epoch        int
	MessageID    string // the key
	Status       Status
	Attempts     int
	Topic        string
	Position     inbox.Position // from [inbox.Config.Position]
	EventType    string
	EventVersion string
	UUID         string
	Metadata     message.Metadata
	Payload      []byte // nil in an outline
	Unreadable   error  // why Payload, Metadata or all is missing: inbox.ErrErased, another terminal error, or a temporary one
	OrderKey     string
	ReceivedAt   time.Time
	DueAt        time.Time // when it will be tried, or parked if it is HELD; zero: never, or a process is working on it
	LeasedUntil  time.Time // when the lease of its process ends unless renewed; zero: no lease
	LastError    string
	ErrorGroup   int64 // see [Admin.FailureGroups]; 0: no error
	Reason       string
	Original     string // of a collision: the key it collided with
	Aggregate    string // if the version gate held or parked it …
	Version      int64  // … and the version it brings

	CorrelationID string // of the metadata: correlation_id, as Watermill's middleware sets it, or ce_correlationid
	CausationID   string // of the metadata: causation_id or ce_causationid
}

// outline returns the message in row without its payload. It says if the payload was never stored.
func (a *Admin) outline(_ context.Context, row stored.Message) (Message, error) {
	md, err := row.Decoded()
	if err != nil {
		err = inbox.Terminal(err)
	}
	m := Message{
		ID: row.ID, Consumer: string(row.Name), Epoch: row.Epoch, MessageID: keycode.String(row.MessageID),
		Status: row.Status, Attempts: row.Attempts, Topic: string(row.Topic), Position: positionOf(row),
		EventType: string(row.EventType), EventVersion: string(row.EventVersion),
		UUID: string(row.UUID), Metadata: md, Unreadable: err,
		ReceivedAt: time.UnixMicro(row.ReceivedAt).UTC(),
		LastError:  string(row.LastError), Reason: string(row.Reason), Original: keycode.String(row.Original),
		Aggregate: keycode.String(row.Aggregate), Version: row.Version.Int64,
		OrderKey: keycode.String(row.OrderKey), ErrorGroup: row.ErrorGroup.Int64,
		CorrelationID: cmp.Or(md["correlation_id"], md["ce_correlationid"]),
		CausationID:   cmp.Or(md["causation_id"], md["ce_causationid"]),
	}
	if row.Form == stored.Erased {
		m.Unreadable = inbox.ErrErased
	}
	switch at := time.UnixMicro(row.DueAt).UTC(); {
	case row.LeaseToken != 0:
		m.LeasedUntil = at
	case time.Until(at) < stored.Never/2:
		m.DueAt = at
	}
	return m, nil
}

// whole returns the message in row. If the payload or the metadata cannot be read, Unreadable says
// why.
func (a *Admin) whole(ctx context.Context, row stored.Message) (Message, error) {
	m, err := a.outline(ctx, row)
	switch {
	case row.Whole():
		m.Payload = row.Payload
	case err == nil && m.Unreadable == nil:
		m.Payload, m.Unreadable = a.inbox.Payload(ctx, &row, m.Metadata)
	}
	return m, err
}

// positionOf returns the place of the message in its source.
func positionOf(row stored.Message) inbox.Position {
	p := inbox.Position{Topic: string(row.Topic), Offset: row.Offset.Int64}
	if row.Partition.Valid {
		p.Partition = strconv.FormatInt(row.Partition.Int64, 10)
	}
	return p
}
