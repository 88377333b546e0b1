package durable_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var errHopeless = inbox.Terminal(errors.New("no attempt would succeed"))

// A message whose failure RecordFailures has in the table is not stored anew by the queue.
func TestATerminalFailureThatIsRecorded(t *testing.T) {
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		told := make(chan string, 10)
		durable.OnPark = func(_ *message.Message, reason string) error {
			told <- reason
			return nil
		}
		s := b.start(durable, func(*message.Message) ([]*message.Message, error) { return nil, errHopeless },
			millrace.Inbox{Store: b.store, Options: inbox.Options{RecordFailures: true}}.Middleware)
		msg := newMessage()
		require.True(t, s.deliver(msg))
		b.mustBeTerminal(msg, 1)
		assert.Len(t, told, 1)
		require.True(t, s.deliver(msg), "a copy")
		b.mustBeTerminal(msg, 1)
	}))
}

// Nor is one that has failed before, and waits in the table for its next attempt.
func TestACopyThatFailsTerminally(t *testing.T) {
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.MinBackoff, durable.MaxBackoff = time.Hour, time.Hour
		told := make(chan string, 10)
		durable.OnPark = func(_ *message.Message, reason string) error {
			told <- reason
			return nil
		}
		fails := make(chan error, 2)
		fails <- inbox.RetryAfter(errors.New("not now"), time.Hour)
		fails <- errHopeless
		s := b.inboxed(durable, func(*message.Message) error { return <-fails })
		msg := newMessage()
		require.True(t, s.deliver(msg))
		require.Equal(t, 1, b.open(admin.FailedRetryable))
		require.True(t, s.deliver(msg), "a copy")
		b.mustBeTerminal(msg, 2)
		assert.Len(t, told, 1)
	}))
}

// mustBeTerminal expects that msg waits for an operator after so many attempts.
func (b *bed) mustBeTerminal(msg *message.Message, attempts int) {
	b.Helper()
	found := rig.Find(b, b.store, admin.Filter{})
	require.Len(b, found, 1)
	assert.Equal(b, admin.FailedTerminal, found[0].Status)
	assert.Equal(b, attempts, found[0].Attempts)
	assert.Equal(b, msg.UUID, found[0].UUID)
	assert.Equal(b, errHopeless.Error(), found[0].LastError)
	assert.Contains(b, found[0].Reason, "no other attempt")
	assert.Zero(b, found[0].DueAt)
}
