package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// PayloadInfo says which message a payload is of. It is the same when the payload is sealed
// and when it is opened. None of it is sealed.
type PayloadInfo struct {
	Consumer string
	Topic    string // the message's own, or, of one that a handler produced, where it goes
	UUID     string
	Metadata message.Metadata
}

// PayloadCodec changes payloads on their way into the tables and back, for instance with a
// key per person, so that throwing a key away erases what is stored of that person.
// payload.AESGCM is one. It must be safe for concurrent use. In a delivery that no queue stores a panic
// goes on its way, and nothing is stored; in a queue it is an error like any other.
type PayloadCodec interface {
	// Seal returns what to store. Where the message is stored in a transaction, inbox.Tx
	// returns that for ctx, so a key can be made in it; be quick then. After [ErrErased] an open
	// message is stored without its payload, as if it had been erased later. Any other error
	// is one of storing the message.
	Seal(ctx context.Context, info PayloadInfo, payload []byte) ([]byte, error)

	// Open returns the payload that Seal was given. [ErrErased], or an error marked with
	// [Terminal], says that nobody will ever open it again. At any other error the message is
	// delivered later. That is an attempt only where this process has opened other payloads since the
	// message failed so the last time. It never is with [ErrUnavailable], nor with a
	// [net.Error]: return one of these in an outage if some payloads can be opened during it, since
	// their keys are in a cache for instance.
	Open(ctx context.Context, info PayloadInfo, sealed []byte) ([]byte, error)
}

// storedPayload is a payload as it is stored.
type storedPayload struct {
	inRow []byte
	form  stored.Form
	ref   []byte // of the blob, nil where it is in the row
	body  []byte // of a blob that goes into our own table
}

// errNotKept says that a payload cannot be stored now.
var errNotKept = errors.New("the payload cannot be stored")

// errNotIdentified says that a function of the service's, such as Key, could not tell now what a message is.
var errNotIdentified = errors.New("the message cannot be identified")

// sealPayload makes of the payload of msg what its row is to keep. A blob outside the
// database is written by then.
func (s *Store) sealPayload(ctx context.Context, consumer, topic string, msg *message.Message) (storedPayload, error) {
	p := storedPayload{inRow: append([]byte{}, msg.Payload...)}
	if s.config.Payloads != nil {
		info := PayloadInfo{Consumer: consumer, Topic: topic, UUID: msg.UUID, Metadata: msg.Metadata}
		sealed, err := s.config.Payloads.Seal(ctx, info, p.inRow)
		if errors.Is(err, ErrErased) {
			return storedPayload{inRow: []byte{}, form: stored.Erased}, nil
		}
		if err != nil {
			return p, fmt.Errorf("%w: seal it: %w", errNotKept, err)
		}
		p.inRow, p.form = append([]byte{}, sealed...), stored.Sealed
	}
	if s.config.BlobsAbove == 0 || len(p.inRow) <= s.config.BlobsAbove {
		return p, nil
	}
	return s.putBlob(ctx, p)
}

// sealPayloadIn is sealPayload in a transaction, which a codec finds in its context.
func (s *Store) sealPayloadIn(
	ctx context.Context, tx *sqlx.Tx, consumer, topic string, msg *message.Message,
) (storedPayload, error) {
	own := ambient.New(tx, s.db.DB)
	defer own.End()
	return s.sealPayload(ambient.With(ctx, own), consumer, topic, msg)
}

// openPayload returns the payload of a stored message with this metadata as it came.
func (s *Store) openPayload(ctx context.Context, row *stored.Message, metadata message.Metadata) ([]byte, error) {
	kept := row.Payload
	if row.Ref != nil {
		var err error
		if kept, err = s.getBlob(ctx, row.Ref); err != nil {
			return nil, err
		}
	}
	info := PayloadInfo{Consumer: string(row.Name), Topic: string(row.Topic), UUID: string(row.UUID), Metadata: metadata}
	return s.unseal(ctx, info, row.Form, kept)
}

func (s *Store) unseal(ctx context.Context, info PayloadInfo, form stored.Form, kept []byte) ([]byte, error) {
	switch {
	case form == stored.Plain:
		return kept, nil
	case form == stored.Erased:
		return nil, ErrErased
	case form != stored.Sealed:
		return nil, fmt.Errorf("the payload has form %d, which a newer release wrote: update this service", form)
	case s.config.Payloads == nil:
		return nil, errors.New("the payload is sealed: set Config.Payloads to the codec it was stored with")
	}
	payload, err := s.config.Payloads.Open(ctx, info, kept)
	if err != nil {
		return nil, fmt.Errorf("open the payload: %w", &openError{err, &s.unsealed})
	}
	s.unsealed.Add(1)
	return append([]byte{}, payload...), nil
}

// openError is one of the codec or of the blob store, which opened so many other payloads.
type openError struct {
	error
	others *atomic.Int64
}

func (e *openError) Unwrap() error { return e.error }

// saysOf is what err says of the database, in a delivery. That a codec, a blob store or a function
// such as Key cannot reach its server says nothing.
func saysOf(err error) dialect.Kind {
	var opening *openError
	kind := dialect.Classify(err)
	if kind.Down() && (errors.Is(err, errNotKept) || errors.Is(err, errNotIdentified) || errors.As(err, &opening)) {
		return dialect.Other
	}
	return kind
}

// unopenable reports whether err says that a payload will never be opened again.
func unopenable(err error) bool { return errors.Is(err, ErrErased) || IsTerminal(err) }
