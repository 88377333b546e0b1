package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
)

// Status is the state of an open message.
type Status int16

// States of open messages. A message that is completed is not open: its claim says so.
const (
	Received        Status = 1
	InProgress      Status = 2
	Settling        Status = 3
	FailedRetryable Status = 4
	FailedTerminal  Status = 5
	Parked          Status = 6
	Held            Status = 7
)

// String returns the name of the state.
func (s Status) String() string {
	switch s {
	case Received:
		return "RECEIVED"
	case InProgress:
		return "IN_PROGRESS"
	case Settling:
		return "SETTLING"
	case FailedRetryable:
		return "FAILED_RETRYABLE"
	case FailedTerminal:
		return "FAILED_TERMINAL"
	case Parked:
		return "PARKED"
	case Held:
		return "HELD"
	}
	return fmt.Sprintf("Status(%d)", int16(s))
}

// stuck reports whether nobody but an operator will do something about the message.
func (s Status) stuck() bool { return s == Parked || s == FailedTerminal }

// Message is an open message: stored whole, waiting for a worker or an operator.
type Message struct {
	ID           int64 // of the row: what [Store.Retry] and [Store.Discard] take
	Consumer     string
	Epoch        int
	MessageID    string // the key
	Status       Status
	Attempts     int
	Topic        string
	Position     Position // as [Config.Position] told it
	EventType    string
	EventVersion string
	UUID         string
	Metadata     message.Metadata
	Payload      []byte // not where only an outline was asked for
	Unreadable   error  // why there is no Payload, or no Metadata: ErrErased, one that is terminal, or what passes
	OrderKey     string
	ReceivedAt   time.Time
	DueAt        time.Time // when something will be done about it by itself; zero: never, or it is being worked on
	LeasedUntil  time.Time // until when a process has it, unless it renews; zero: nobody has it
	LastError    string
	ErrorGroup   int64 // see [Store.FailureGroups]; 0: no error
	Reason       string
	Original     string // of a collision: the key it collided with
	Aggregate    string // of one that the version gate put aside …
	Version      int64  // … and the version it brings

	CorrelationID string // of the metadata: correlation_id, as Watermill's middleware sets it, or ce_correlationid
	CausationID   string // of the metadata: causation_id or ce_causationid

	row messageRow
}

// messageRow is a row of the messages table.
type messageRow struct {
	Name         []byte        `db:"name"`
	KeySource    []byte        `db:"key_source"` // only of a single message
	Epoch        int           `db:"epoch"`
	ID           int64         `db:"id"`
	Consumer     int32         `db:"consumer"`
	MessageID    []byte        `db:"message_id"`
	Status       Status        `db:"status"`
	Attempts     int           `db:"attempts"`
	Topic        []byte        `db:"topic"`
	Partition    sql.NullInt64 `db:"partition_no"`
	Offset       sql.NullInt64 `db:"offset_no"`
	OrderKey     []byte        `db:"order_key"`
	EventType    []byte        `db:"event_type"`
	EventVersion []byte        `db:"event_version"`
	UUID         []byte        `db:"uuid"`
	Metadata     []byte        `db:"metadata"`
	Payload      []byte        `db:"payload"`
	Hash         int64         `db:"payload_hash"`
	ReceivedAt   int64         `db:"received_at"`
	DueAt        int64         `db:"due_at"`
	LeaseToken   int64         `db:"lease_token"`
	LastError    []byte        `db:"last_error"`
	ErrorGroup   sql.NullInt64 `db:"error_group"`
	Reason       []byte        `db:"reason"`
	Original     []byte        `db:"original"`
	Aggregate    []byte        `db:"aggregate"`
	Version      sql.NullInt64 `db:"version"`
	Form         payloadForm   `db:"payload_form"`
	Ref          []byte        `db:"payload_ref"`
}

var errMetadata = errors.New("what is stored as metadata is something else, so the row was changed: " +
	"put back what it was and try the message again, or discard it")

// decoded returns the metadata of r, or a terminal error.
func (r *messageRow) decoded() (message.Metadata, error) {
	md, err := msgcode.DecodeMetadata(r.Metadata)
	if err != nil {
		return nil, Terminal(fmt.Errorf("message %d: %w (%w)", r.ID, errMetadata, err))
	}
	return md, nil
}

func (r messageRow) message() Message {
	md, err := r.decoded()
	m := Message{
		ID: r.ID, Consumer: string(r.Name), Epoch: r.Epoch, MessageID: keycode.String(r.MessageID),
		Status: r.Status, Attempts: r.Attempts, Topic: string(r.Topic), Position: positionOf(string(r.Topic), r.Partition, r.Offset),
		EventType: string(r.EventType), EventVersion: string(r.EventVersion),
		UUID: string(r.UUID), Metadata: md, Payload: r.Payload, Unreadable: err,
		ReceivedAt: time.UnixMicro(r.ReceivedAt).UTC(),
		LastError:  string(r.LastError), Reason: string(r.Reason), Original: keycode.String(r.Original),
		Aggregate: keycode.String(r.Aggregate), Version: r.Version.Int64,
		OrderKey: keycode.String(r.OrderKey), ErrorGroup: r.ErrorGroup.Int64,
		CorrelationID: cmp.Or(md["correlation_id"], md["ce_correlationid"]),
		CausationID:   cmp.Or(md["causation_id"], md["ce_causationid"]),
		row:           r,
	}
	switch at := time.UnixMicro(r.DueAt).UTC(); {
	case r.LeaseToken != 0:
		m.LeasedUntil = at
	case time.Until(at) < never/2:
		m.DueAt = at
	}
	return m
}

// openMessage is what differs from one open message to the next.
type openMessage struct {
	status    Status
	attempts  int
	lastError []byte
	reason    string
	delay     int64      // in microseconds, until something must be done about it
	waitsFor  *versioned // of one that the version gate put aside
}

// insertMessage stores the message of cl whole. The claim of its key must be open in tx.
func (s *Store) insertMessage(ctx context.Context, tx *sqlx.Tx, cl *Claim, open openMessage) error {
	d := cl.delivery
	kind, version := d.consumer.config.Describe(d.msg)
	var aggregate []byte
	var number sql.NullInt64
	if open.waitsFor != nil {
		aggregate, number = open.waitsFor.id, sql.NullInt64{Int64: open.waitsFor.Number, Valid: true}
	}
	payload, err := s.sealPayloadIn(ctx, tx, d.consumer.config.Name, d.topic, d.as.Came.Copy())
	if err != nil {
		return err
	}
	partition, offset := s.position(d.msg)
	_, err = tx.ExecContext(ctx, s.dialect.InsertMessage,
		cl.id32, d.id, open.status, open.attempts, []byte(d.topic), partition, offset, nil,
		noteText(kind), noteText(version), []byte(d.as.Came.UUID), msgcode.AppendMetadata(nil, d.as.Came.Metadata),
		payload.inRow, d.hash, open.lastError, groupOf(open.lastError), noteText(open.reason), d.original,
		aggregate, number, payload.form, payload.ref, open.delay)
	if err != nil {
		return fmt.Errorf("store the message, whose payload has %d bytes: %w", len(d.as.Came.Payload), err)
	}
	return s.checkIn(ctx, tx, payload)
}

var (
	// errStored says that a message lies in the table of its queue already, which delivers it.
	errStored = errors.New("the message is stored, and its queue delivers it")

	errStoredOther = errors.New("another payload is stored under the key of the message, and not handled yet: " +
		"its source has to bring it again")
)

// storeAside is insertMessage for one that is not handled now. What a copy of it in the table waits for is to
// be delivered, and no claim was made for that: then the copy is judged in its turn, and this one is done.
func (cl *Claim) storeAside(ctx context.Context, tx *sqlx.Tx, open openMessage) error {
	s := cl.consumer.store
	var stored int64
	switch err := tx.GetContext(ctx, &stored, s.dialect.Queue.SelectStored, cl.id32, cl.id); {
	case errors.Is(err, sql.ErrNoRows):
		if err := s.insertMessage(ctx, tx, cl, open); err != nil {
			return err
		}
		return s.note(ctx, tx, cl.id32, cl.id, putAside)
	case err != nil:
		return fmt.Errorf("look whether the message is stored: %w", err)
	case !cl.is(stored):
		return errStoredOther
	}
	cl.answer = "stored as " + Received.String()
	return errStored
}

// judge parks, in the transaction of its claim, a message that must not be handled, and
// returns why.
func (cl *Claim) judge(ctx context.Context, tx *sqlx.Tx, what step) (objection why, err error) {
	objection, err = cl.objection(ctx, tx, what)
	if objection.text == "" || err != nil {
		return why{}, err
	}
	s := cl.consumer.store
	if _, err := tx.ExecContext(ctx, s.dialect.ReopenClaim, cl.id32, cl.delivery.id, cl.token); err != nil {
		return why{}, fmt.Errorf("open the claim: %w", err)
	}
	return objection, cl.park(ctx, tx, objection.text)
}

// purgeLine is up to when what was handled may be forgotten, under any key that counts. It is read after
// the claim, in statements of its own: a purge that freed the key is then seen.
func (cl *Claim) purgeLine(ctx context.Context, db sqlx.QueryerContext) (latest int64, err error) {
	epochs := []int32{cl.id32}
	if cl.consumer.former != nil {
		epochs = append(epochs, cl.former32)
	}
	for _, id := range epochs {
		var line int64
		if err := sqlx.GetContext(ctx, db, &line, cl.consumer.store.dialect.SelectPurgeLine, id); err != nil {
			return 0, fmt.Errorf("read the purge line: %w", err)
		}
		latest = max(latest, line)
	}
	return latest, nil
}

// objection says why a message must not be handled, or nothing.
func (cl *Claim) objection(ctx context.Context, db sqlx.QueryerContext, what step) (why, error) {
	d, config := cl.delivery, cl.consumer.config
	var err error
	if cl.refused, err = cl.refuses(ctx, db, what); err != nil || cl.refused {
		return d.refusal(), err
	}
	if d.keyless.text != "" {
		return d.keyless, nil
	}
	if what != insert { // it was judged when it was new
		return why{}, nil
	}
	if d.original != nil {
		return why{ReasonCollision, "same key as message " + keycode.String(d.original) + ", other payload"}, nil
	}
	made, known := config.MessageTime(d.msg)
	if !known || made.IsZero() {
		return why{}, nil
	}
	surely := made.Add(-config.ClockSkew)
	if surely.After(time.Now().Add(-MinRetention)) {
		return why{}, nil
	}
	line, err := cl.purgeLine(ctx, db)
	if err != nil {
		return why{}, err
	}
	if line == 0 || surely.After(time.UnixMicro(line)) {
		return why{}, nil
	}
	return why{ReasonTooOld, fmt.Sprintf("too old: made at %s, and what was handled up to %s is forgotten, so it may have been handled",
		made.UTC().Format(time.RFC3339), time.UnixMicro(line).UTC().Format(time.RFC3339))}, nil
}
