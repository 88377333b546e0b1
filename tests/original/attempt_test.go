package original_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

var retry = wmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Millisecond}.Middleware

func recording(i *millrace.Inbox) { i.RecordFailures = true }

func byPayload(i *millrace.Inbox) { i.Key = inbox.ByPayload() }

// attemptBodies: each attempt begins with the message as it came.
var attemptBodies = []testdb.Body{
	retried("", func(*millrace.Inbox) {}),
	retried(", recorded", recording),
	retried(", by payload", byPayload),
	unpackedAgain("in place", unlock),
	unpackedAgain("replaced", unpack),
	unpackedAgain("in a message of its own", another),
	{Name: "a panic of a handler that changed its message", Why: "who recovers sees the message as it came", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		crash := true
		h := chain(func(msg *message.Message) ([]*message.Message, error) {
			if crash {
				spoil(msg)
				panic("crash")
			}
			return nil, apply(msg)
		}, b.inbox(recording))
		msg := change(1)
		given := fresh(msg)
		require.Panics(t, func() { _, _ = h(given) })
		same(t, msg, given)
		b.storedAs(admin.FailedRetryable, msg)
		crash = false
		_, err := h(given)
		require.NoError(t, err)
		assert.Equal(t, []string{string(msg.Payload)}, b.effects())
	}},
	{Name: "a failure behind the inbox", Why: "Retry around both finds the claim, by payload too", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		fails := true
		flaky := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				out, err := h(msg)
				if fails && err == nil {
					fails, err = false, errBoom
				}
				return out, err
			}
		}
		h := chain(func(msg *message.Message) ([]*message.Message, error) {
			err := apply(msg)
			spoil(msg)
			return nil, err
		}, retry, flaky, b.inbox(byPayload))
		_, err := h(fresh(change(1)))
		require.NoError(t, err)
		assert.Len(t, b.effects(), 1)
		b.noCollision()
	}},
	{Name: "a handler that returns its own message", Why: "what it made of it is published", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		s := b.serve(nil, func(msg *message.Message) ([]*message.Message, error) {
			spoil(msg)
			return message.Messages{msg}, nil
		}, b.inbox())
		msg := change(1)
		s.deliver(msg)
		require.Len(t, s.published.Messages(), 1)
		want := fresh(msg)
		spoil(want)
		same(t, want, s.published.Messages()[0])
	}},
	{Name: "no payload and no metadata", Why: "nil stays nil", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		fails := true
		h := chain(func(msg *message.Message) ([]*message.Message, error) {
			assert.Nil(t, msg.Payload)
			assert.Nil(t, msg.Metadata)
			msg.Payload, msg.Metadata = message.Payload("more"), message.Metadata{"more": "true"}
			if fails {
				fails = false
				return nil, errBoom
			}
			return nil, nil
		}, retry, b.inbox(recording))
		msg := change(1)
		msg.Payload, msg.Metadata = nil, nil
		_, err := h(msg)
		require.NoError(t, err)
		assert.Nil(t, msg.Payload)
		assert.Nil(t, msg.Metadata)
		b.noCollision()
	}},
	{Name: "Before that fetches the payload", Why: "the handler has what Before made of the message, the tables what came", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		fails := true
		h := chain(func(msg *message.Message) ([]*message.Message, error) {
			assert.Equal(t, "fetched", string(msg.Payload))
			if fails {
				fails = false
				return nil, errBoom
			}
			return nil, apply(msg)
		}, b.inbox(recording, func(i *millrace.Inbox) {
			i.Before = func(msg *message.Message) error {
				msg.Payload = message.Payload("fetched")
				return nil
			}
		}))
		msg := change(1)
		given := fresh(msg)
		_, err := h(given)
		require.ErrorIs(t, err, errBoom)
		same(t, msg, given)
		b.storedAs(admin.FailedRetryable, msg)
		_, err = h(given)
		require.NoError(t, err)
		assert.Equal(t, []string{"fetched"}, b.effects())
		assert.Zero(t, b.rows())
	}},
}

func retried(name string, settings func(*millrace.Inbox)) testdb.Body {
	return testdb.Body{
		Name: "Retry outside a handler that changes its message" + name, Why: "the second attempt is the same message",
		Run: func(t *testing.T, db *testdb.DB) {
			b := newBed(t, db)
			var s seen
			h := chain(func(msg *message.Message) ([]*message.Message, error) {
				times := s.add(msg)
				if err := apply(msg); err != nil {
					return nil, err
				}
				spoil(msg)
				msg.UUID = "another"
				if times == 1 {
					return nil, errBoom
				}
				return nil, nil
			}, retry, b.inbox(settings))
			msg := change(1)
			given := fresh(msg)
			_, err := h(given)
			require.NoError(t, err)
			b.noCollision()
			assert.Equal(t, []string{string(msg.Payload)}, b.effects())
			assert.Zero(t, b.rows())
			require.Len(t, s.runs, 2)
			same(t, msg, s.runs[1])
			same(t, msg, given)
		},
	}
}

func unpackedAgain(name string, change1 message.HandlerMiddleware) testdb.Body {
	return testdb.Body{
		Name: "Retry outside a middleware that unpacks " + name, Why: "the second attempt is packed as the first was",
		Run: func(t *testing.T, db *testdb.DB) {
			b := newBed(t, db)
			fails := true
			h := chain(func(msg *message.Message) ([]*message.Message, error) {
				err := apply(msg)
				if fails {
					fails, err = false, errBoom
				}
				return nil, err
			}, retry, b.inbox(recording), change1)
			_, err := h(fresh(change(1)))
			require.NoError(t, err)
			b.noCollision()
			assert.Equal(t, []string{".secret 1"}, b.effects())
			assert.Zero(t, b.rows())
		},
	}
}
