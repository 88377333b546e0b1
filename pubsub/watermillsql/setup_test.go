package watermillsql_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// each runs body on the databases that watermill-sql has.
func each(t *testing.T, body func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Helper()
			body(t, testdb.On(t, dialect))
		})
	}
}

func newPublisher(t *testing.T, db *testdb.DB, topics ...string) *watermillsql.Publisher {
	t.Helper()
	p, err := watermillsql.NewPublisher(db.DB, watermillsql.Config{Timeout: rig.Patience})
	require.NoError(t, err)
	require.NoError(t, p.Initialize(t.Context(), topics...))
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// newSubscriber reads as group, without long pauses.
func newSubscriber(
	t *testing.T, db *testdb.DB, group string, change ...func(*watermillsql.SubscriberConfig),
) *watermillsql.Subscriber {
	t.Helper()
	config := watermillsql.SubscriberConfig{
		ConsumerGroup: group,
		PollInterval:  5 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 50 * time.Millisecond,
	}
	for _, c := range change {
		c(&config)
	}
	s, err := watermillsql.NewSubscriber(db.DB, config)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func batch(size int) func(*watermillsql.SubscriberConfig) {
	return func(c *watermillsql.SubscriberConfig) { c.BatchSize = size }
}

func subscribe(t *testing.T, s message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return messages
}

// receive waits for the next message.
func receive(t *testing.T, from <-chan *message.Message) *message.Message {
	t.Helper()
	msg := rig.Within(t, from, "a message")
	require.NotNil(t, msg, "the subscription ended")
	return msg
}

// silent checks that nothing comes for a while in which dozens of polls fit.
func silent(t *testing.T, from <-chan *message.Message, why string) {
	t.Helper()
	silentFor(t, 400*time.Millisecond, from, why)
}

func silentFor(t *testing.T, span time.Duration, from <-chan *message.Message, why string) {
	t.Helper()
	select {
	case msg := <-from:
		require.NotNil(t, msg, "the subscription ended: %s", why)
		require.Fail(t, "a message came", "%s: %s", msg.UUID, why)
	case <-time.After(span):
	}
}

func newMessage(uuid string) *message.Message {
	return message.NewMessage(uuid, []byte("\x00 no JSON"))
}

func publish(t *testing.T, p message.Publisher, topic string, uuids ...string) {
	t.Helper()
	msgs := make([]*message.Message, len(uuids))
	for n, uuid := range uuids {
		msgs[n] = newMessage(uuid)
	}
	require.NoError(t, p.Publish(topic, msgs...))
}

// rows counts what the table of a topic holds.
func rows(t *testing.T, db *testdb.DB, topic string) (n int) {
	t.Helper()
	require.NoError(t, db.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM watermill_`+topic))
	return n
}

func exec(t *testing.T, db *testdb.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	require.NoError(t, err)
}

var silence = watermill.NopLogger{}

// documented returns the statement in doc.go that begins so.
func documented(t *testing.T, begin string) string {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "//\t"+begin)
	require.True(t, found, begin)
	statement, _, _ := strings.Cut(rest, "\n//\n")
	return begin + strings.ReplaceAll(statement, "\n//\t", "\n")
}
