package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/internal/stored"
)

// storedPayload is a payload as the tables keep it.
type storedPayload struct {
	inRow []byte
	form  stored.Form
	ref   []byte // the name of its blob; nil if the payload is in the row
	body  []byte // the blob, if it goes into our own table
}

// texts returns the arguments that may be large of the larger statement that stores p with this metadata.
func (p storedPayload) texts(metadata message.Metadata) [][]byte {
	inRow := msgcode.AppendMetadata(nil, metadata)
	if len(p.body) > len(p.inRow)+len(inRow) {
		return [][]byte{p.body}
	}
	return [][]byte{p.inRow, inRow}
}

// errNotKept says that a payload cannot be stored now.
var errNotKept = errors.New("the payload cannot be stored")

// errNotIdentified says that a function of the service, such as Key, failed for now to identify a message.
var errNotIdentified = errors.New("the message cannot be identified")

// seals reports whether functions of the service are called for what is stored.
func (s *Store) seals() bool { return s.config.Payloads != nil || s.config.BlobsAbove > 0 }

// sealPayload returns the payload of msg as its row keeps it. It has written a blob outside the
// database by then.
func (s *Store) sealPayload(ctx context.Context, consumer, topic string, msg *message.Message) (storedPayload, error) {
	p := storedPayload{inRow: append([]byte{}, msg.Payload...)}
	if s.config.Payloads != nil {
		info := payload.Info{Consumer: consumer, Topic: topic, UUID: msg.UUID, Metadata: msg.Metadata}
		sealed, err := s.config.Payloads.Seal(ctx, info, p.inRow)
		if errors.Is(err, ErrErased) {
			return storedPayload{inRow: []byte{}, form: stored.Erased}, nil
		}
		if err != nil {
			return p, fmt.Errorf("%w: seal it: %w", errNotKept, err)
		}
		p.inRow, p.form = append([]byte{}, sealed...), stored.Sealed
		if s.config.Blobs == nil {
			s.unkept.Store(0)
		}
	}
	if s.config.BlobsAbove == 0 || len(p.inRow) <= s.config.BlobsAbove {
		return p, nil
	}
	return s.putBlob(ctx, p)
}

// sealPayloadIn is sealPayload in a transaction, which the codec finds in its context.
func (s *Store) sealPayloadIn(
	ctx context.Context, tx *sqlx.Tx, consumer, topic string, msg *message.Message,
) (storedPayload, error) {
	own := ambient.New(tx, s.db.DB)
	defer own.End()
	return s.sealPayload(ambient.With(ctx, own), consumer, topic, msg)
}

// openPayload returns the payload of a stored message with this metadata, as it arrived.
func (s *Store) openPayload(ctx context.Context, row *stored.Message, metadata message.Metadata) ([]byte, error) {
	kept := row.Payload
	if row.Ref != nil {
		var err error
		if kept, err = s.getBlob(ctx, row.Ref); err != nil {
			return nil, err
		}
		if len(kept) == 0 { // a blob has more bytes than BlobsAbove
			return nil, &openError{fmt.Errorf("the blob %x is empty: put back what was stored", row.Ref), &s.fetched}
		}
	}
	info := payload.Info{Consumer: string(row.Name), Topic: string(row.Topic), UUID: string(row.UUID), Metadata: metadata}
	return s.unseal(ctx, info, row.Form, kept)
}

func (s *Store) unseal(ctx context.Context, info payload.Info, form stored.Form, kept []byte) ([]byte, error) {
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
	opened, err := s.config.Payloads.Open(ctx, info, kept)
	if err != nil {
		return nil, fmt.Errorf("open the payload: %w", &openError{err, &s.unsealed})
	}
	s.unsealed.Add(1)
	return append([]byte{}, opened...), nil
}

// openError is an error of the codec or of the blob store. others counts the payloads that the same
// one has opened.
type openError struct {
	error
	others *atomic.Int64
}

func (e *openError) Unwrap() error { return e.error }

// saysOf returns what err says about the database, in a delivery. An error of a codec, a blob store
// or a function such as Key that cannot reach its own server says nothing about it.
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

// refused returns err, with which the database did not store these arguments. It says whether they have too many bytes:
// MySQL cuts the connection then, as if it were away. What else a message brings may be too long for its column.
func (s *Store) refused(ctx context.Context, err error, args ...[]byte) error {
	if dialect.TooLong(err) {
		return &tooLongError{err}
	}
	if dialect.Classify(err) == dialect.Unavailable && s.db.BeyondPacket(ctx, args...) {
		return fmt.Errorf("%w: %v", database.ErrTooLarge, err) //nolint:errorlint // the message is to blame, not the database
	}
	return err
}

// tooLongError says that a message can never be stored. It is a database.ErrTooLarge, whose text would not help.
type tooLongError struct{ error }

func (e *tooLongError) Error() string {
	return "MySQL and MariaDB store a UUID and a topic of at most 65,535 bytes, so this message can never be stored: " + e.error.Error()
}

func (e *tooLongError) Unwrap() error        { return e.error }
func (e *tooLongError) Is(target error) bool { return target == database.ErrTooLarge } //nolint:errorlint // errors.Is unwraps

// unservable reports whether a redelivery at once would fail with err, too.
func unservable(err error) bool {
	return dialect.Classify(err).Down() || errors.Is(database.Explain(err), database.ErrTooLarge)
}
