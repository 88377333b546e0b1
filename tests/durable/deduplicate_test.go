package durable_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestDeduplicateKnowsAStoredMessage: by the id that it is stored with, where the message does not tell it.
func TestDeduplicateKnowsAStoredMessage(t *testing.T) {
	testdb.Conformance(t, deduplicateBodies)
}

// paying is a service with StoreFirst and Deduplicate that pays for each message once, by a step.
type paying struct {
	*service
	mu       sync.Mutex
	payments []string // payloads
}

// paying runs first, if there is one, and then pays for what the message says.
func (b *bed) paying(durable pubsub.Durable, key inbox.Key, first message.NoPublishHandlerFunc) *paying {
	b.Helper()
	p := &paying{}
	p.service = b.start(durable, silent(func(msg *message.Message) error {
		if first != nil {
			if err := first(msg); err != nil {
				return err
			}
		}
		receipt, err := inbox.Once(msg.Context(), "pay", func(context.Context, string) ([]byte, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.payments = append(p.payments, string(msg.Payload))
			return msg.Payload, nil
		})
		if err == nil && string(receipt) != string(msg.Payload) {
			err = inbox.Terminal(errors.New("the receipt of another message"))
		}
		return err
	}), millrace.Deduplicate{Claims: b.store.Leases(), Consumer: consumer, Key: key}.Middleware)
	return p
}

// paid waits until nothing is stored, and expects these payments.
func (p *paying) paid(payloads ...string) {
	p.Helper()
	rig.Eventually(p, "nothing is stored any more", func() bool { return p.rows() == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.Equal(p, payloads, p.payments)
}

// retry has an operator retry the only message with the status.
func (p *paying) retry(status admin.Status) {
	p.Helper()
	require.NoError(p, admin.New(p.store).Retry(p.Context(), p.only(p.store, status).ID, ada, nil))
}

// offset is a key that the source alone knows, which no queue attempts to deliver.
var offset = inbox.ByPosition(func(msg *message.Message) (inbox.Position, error) {
	if inbox.Attempt(msg.Context()) > 0 {
		return inbox.Position{}, nil // it does not come from the log
	}
	at, err := strconv.ParseInt(msg.Metadata.Get("at"), 10, 64)
	return inbox.Position{Partition: "0", Offset: at}, err
})

func at(msg *message.Message, offset int) *message.Message {
	msg = msg.Copy()
	msg.Metadata.Set("at", strconv.Itoa(offset))
	return msg
}

var deduplicateBodies = []testdb.Body{
	{Name: "a collision that is retried", Why: "it is a message of its own, not a duplicate of the handled one", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		began, finish := make(chan bool), make(chan bool)
		var runs counter
		p := b.paying(storeFirst(b.store), inbox.Key{}, func(msg *message.Message) error {
			if runs.run(msg) == 1 {
				close(began)
				<-finish
			}
			return nil
		})
		msg := newMessage()
		assert.True(t, p.deliver(msg))
		<-began
		assert.True(t, p.deliver(another(msg)))
		assert.Equal(t, 1, b.open(admin.Parked))
		close(finish)
		rig.Eventually(t, "the first is handled", func() bool { return b.rows() == 1 })
		p.retry(admin.Parked)
		p.paid("payload", "another")
		assert.True(t, p.deliver(msg))
		assert.True(t, p.deliver(another(msg)))
		p.paid("payload", "another")
		assert.Equal(t, 2, runs.of(msg), "copies are duplicates")
	})},
	{Name: "a collision that is retried first", Why: "it leaves the key to the message that had it before", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var runs counter
		p := b.paying(storeFirst(b.store), inbox.Key{}, func(msg *message.Message) error {
			if runs.run(msg) == 1 {
				return inbox.Terminal(errBoom)
			}
			return nil
		})
		msg := newMessage()
		assert.True(t, p.deliver(msg))
		rig.Eventually(t, "it fails", func() bool { return b.open(admin.FailedTerminal) == 1 })
		assert.True(t, p.deliver(another(msg)))
		p.retry(admin.Parked)
		rig.Eventually(t, "the other is handled", func() bool { return b.rows() == 1 })
		p.retry(admin.FailedTerminal)
		p.paid("another", "payload")
	})},
	{Name: "a place in a log", Why: "only the source knows it, when the message is stored", Run: func(t *testing.T, db *testdb.DB) {
		for name, key := range map[string]inbox.Key{"alone": offset, "or the UUID": inbox.FirstOf(offset, inbox.ByUUID())} {
			t.Run(name, func(t *testing.T) {
				b := newBed(t, testdb.On(t, db.Dialect))
				durable := storeFirst(b.store)
				durable.Key = key
				p := b.paying(durable, key, nil)
				msg := newMessage()
				assert.True(t, p.deliver(at(msg, 1)))
				p.paid("payload")
				assert.True(t, p.deliver(at(msg, 1)), "a copy")
				assert.True(t, p.deliver(at(another(msg), 2)), "another place")
				p.paid("payload", "another")
			})
		}
	}},
}
