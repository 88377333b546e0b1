// Package key has keys that are others in each run.
package key

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

var keys = []inbox.Key{
	inbox.ByFunc("a", func(msg *message.Message) (string, error) {
		if msg.UUID == "" {
			return watermill.NewUUID(), nil // want `watermill.NewUUID makes another key.*#a-key-made-in-the-consumer`
		}
		return msg.UUID, nil
	}),
	inbox.ByFunc("b", arrival),
	inbox.ByFunc("c", func(msg *message.Message) (string, error) {
		began := time.Now()
		say := func() string { return time.Now().String() }
		println(say())
		defer func() { println(time.Since(began)) }()
		return msg.UUID, nil
	}),
	inbox.ByFunc("d", func(msg *message.Message) (string, error) {
		return msg.Metadata.Get("customer") + time.Now().Format(time.DateOnly), nil // one a day
	}),
	inbox.ByFunc("e", func(msg *message.Message) (string, error) {
		return uuid.NewSHA1(uuid.NameSpaceOID, msg.Payload).String(), nil
	}),
}

func arrival(msg *message.Message) (string, error) {
	at := time.Now().String() // want `time.Now makes another key`
	return msg.UUID + at, nil
}

func newID() string { return uuid.NewString() }

type call struct{ IdempotencyKey, Other string }

func (c *call) SetIdempotencyKey(string) {}

func handle(msg *message.Message) error {
	ctx := msg.Context()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://bank.example", nil)
	if err != nil {
		return err
	}
	id := uuid.NewString() // want `uuid.NewString is in each run another idempotency key`
	request.Header.Set("Idempotency-Key", id)
	request.Header.Add("X-Idempotency-Key", rand.Text()) // want `rand.Text is in each run`
	request.Header.Set("Idempotency-Key", msg.UUID)
	request.Header.Set("X-Request-Id", uuid.NewString())             // for logs
	request.Header.Set("Idempotency-Key", newID())                   // want `newID is in each run`
	request.Header.Set("Idempotency-Key", time.Now().UTC().String()) // want `time.Now is in each run`
	pay := call{IdempotencyKey: uuid.New().String()}                 // it may be stored in the transaction, once
	pay.IdempotencyKey = uuid.NewString()
	pay.SetIdempotencyKey(uuid.NewString())
	msg.Metadata.Set("idempotency_key", rand.Text())
	if _, err = inbox.ID(ctx, "pay", rand.Text()); err != nil { // want `rand.Text is in each run another id`
		return err
	}
	if pay.IdempotencyKey, err = inbox.ID(ctx, "pay"); err != nil {
		return err
	}
	_ = inbox.WithStep(ctx, string(rune(mathrand.IntN(10)))) // want `mathrand.IntN is in each run another id`
	return nil
}

// client is not called for a message, as far as anybody knows here.
func client(ctx context.Context, header http.Header) {
	header.Set("Idempotency-Key", uuid.NewString())
}

var step = inbox.Step{Name: "pay", Do: func(ctx context.Context, id string) ([]byte, error) {
	one := call{IdempotencyKey: uuid.NewString()} // want `uuid.NewString is in each run`
	one.IdempotencyKey = watermill.NewShortUUID() // want `watermill.NewShortUUID is in each run`
	one.SetIdempotencyKey(uuid.New().String())    // want `uuid.New is in each run`
	one.Other = uuid.NewString()
	_ = map[string]string{"idempotency_key": rand.Text()} // want `rand.Text is in each run`
	one.IdempotencyKey = id
	return nil, pay(ctx, one)
}}

// decorate makes a message, once.
func decorate(msg *message.Message, header http.Header) {
	header.Set("Idempotency-Key", uuid.NewString())
}

func pay(context.Context, call) error { return nil }

type payment struct {
	id, order, ref string
	at             time.Time
}

type stamp struct {
	ref string
	at  time.Time
}

func newPayment(order string, at time.Time) *payment { return &payment{order: order, at: at} }

func (p *payment) key() string {
	key := "pay " + p.order
	return key
}

// record makes rows, which have fields besides the key.
func record(msg *message.Message) error {
	ctx, header := msg.Context(), http.Header{}
	row := payment{id: uuid.NewString(), order: msg.UUID, at: time.Now()} // want `uuid.NewString is in each run another idempotency key`
	header.Set("Idempotency-Key", row.id)
	header.Set("Idempotency-Key", row.order)
	made := newPayment(msg.UUID, time.Now())
	header.Set("Idempotency-Key", made.order)
	header.Set("Idempotency-Key", made.key())
	other := &stamp{ref: rand.Text(), at: time.Now()} // want `time.Now is in each run another id`
	other.ref = msg.UUID
	if _, err := inbox.ID(ctx, other.ref, strconv.FormatInt(other.at.Unix(), 10)); err != nil {
		return err
	}
	_, err := inbox.ID(ctx, "pay", row.ref)
	return err
}

// answer is behind Deduplicate: what it returns is published before the key is kept.
func answer(msg *message.Message) ([]*message.Message, error) {
	first := message.NewMessage(watermill.NewUUID(), msg.Payload) // want `watermill.NewUUID gives the message another UUID in each run`
	id, err := inbox.ID(msg.Context(), "answer")
	if err != nil {
		return nil, err
	}
	return []*message.Message{first, message.NewMessage(id, msg.Payload)}, nil
}

// stored is behind Inbox, which keeps what it returns with the UUID.
func stored(msg *message.Message) ([]*message.Message, error) {
	if _, err := inbox.Tx(msg.Context()); err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
}

func wire(router, other *message.Router, sub message.Subscriber, store *inbox.Store) {
	router.AddMiddleware(millrace.Deduplicate{Claims: store.Leases()}.Middleware)
	router.AddHandler("a", "b", sub, "c", nil, answer)
	millrace.Inbox{Store: store}.AddTo(other)
	other.AddHandler("d", "e", sub, "f", nil, stored)
}
