package tests_test

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// replays are calls one after the other, by the file of what they print.
var replays = []struct {
	name string
	args []string
}{
	{"replay-list-none", []string{"replay", "list"}},
	{"replay-from", []string{"replay", "run", "may"}},
	{"replay-wrong-flag", []string{"replay", "run", "may", "--from", "archive", "--consumer", "mail"}},
	{"replay-failed", []string{"replay", "run", "may", "--from", "failed"}},
	{"replay-none", []string{"replay", "run", "may", "--from", "archive", "--topic", "nothing"}},
	{"replay-proposed", []string{"replay", "run", "may", "--from", "archive", "--topic", "orders"}},
	{"replay-proposed-json", []string{"replay", "run", "may", "--from", "archive", "--topic", "orders", "--json"}},
	{"replay-refused", []string{"replay", "run", "may", "--from", "archive", "--topic", "orders", "--reason", "a gap", "--by", "ada", "--yes"}},
	{"replay-run", []string{
		"replay", "run", "may", "--from", "archive", "--topic", "orders", "--reason", "a gap", "--by", "ada", "--yes", "--into-side-effects", "mail",
	}},
	{"replay-again", []string{
		"replay", "run", "may", "--from", "archive", "--topic", "orders", "--reason", "a gap", "--by", "ada", "--yes", "--into-side-effects", "mail",
	}},
	{"replay-resume-done", []string{"replay", "resume", "may"}},
	{"replay-cancel-done", []string{"replay", "cancel", "may", "--reason", "too late", "--by", "ada", "--yes"}},
	{"replay-unknown", []string{"replay", "resume", "june"}},
	{"replay-not-served", []string{"replay", "run", "june", "--from", "archive", "--topic", "orders", "--into", "billing"}},
	{"replay-list", []string{"replay", "list"}},
	{"replay-dead-proposed", []string{"replay", "run", "dead", "--from", "rabbitmq", "--queue", "orders.dead"}},
}

func (s *shop) archive() {
	s.Helper()
	for n := 20; n <= 22; n++ {
		require.NoError(s, s.out.Publish("orders", order(n)))
	}
	s.exec(`UPDATE millrace_outbox SET status = 4, sent_at = 1, due_at = ? WHERE topic = 'orders' OR topic = 'invoices'`, int64(1)<<60)
	s.exec(`UPDATE millrace_consumers SET on_replay = 2 WHERE name = ?`, []byte("mail"))
}

// journals has a consumer handle a message, and keep it.
func (s *shop) journals() {
	s.Helper()
	ledger, err := s.store.Handler(inbox.ConsumerConfig{Name: "ledger", Options: inbox.Options{Journal: true}},
		func(*message.Message) ([]*message.Message, error) { return nil, nil })
	require.NoError(s, err)
	_, err = ledger(order(23))
	require.NoError(s, err)
	s.exec(`UPDATE millrace_journal SET topic = ?`, []byte("orders")) // as a router would have said
}

func TestReplay(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.archive()
		for _, r := range replays {
			golden(t, r.name, r.args, s.run(r.args...))
		}
		s.journals()
		golden(t, "explain-journal", []string{"explain", id(23)}, s.run("explain", id(23)))
		args := []string{"replay", "run", "kept", "--from", "journal", "--consumer", "ledger", "--reason", "a gap", "--by", "ada", "--yes"}
		golden(t, "replay-journal", args, s.run(args...))
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE uuid = ? AND status = 0`, id(23)))
		assert.Equal(t, 3, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE topic = 'orders' AND status = 0 AND order_key = '17'`),
			"with the order keys of the archive")
		s.exec(`UPDATE millrace_replays SET state = 1 WHERE name = ?`, []byte("may")) // running
		r := s.run("replay", "run", "may", "--from", "archive", "--topic", "invoices", "--reason", "a gap", "--yes", "--into-side-effects", "mail")
		assert.Contains(t, r.err, "a replay with this name exists, and its request was another")
		golden(t, "replay-cancel-proposed", []string{"replay", "cancel", "may"}, s.run("replay", "cancel", "may"))
		assert.Contains(t, s.run("replay", "cancel", "may", "--json").out, `"would": "cancel"`)
		s.exec(`UPDATE millrace_journal SET message_id = ?`, []byte("\x02a\x01b"))
		args = []string{"replay", "run", "named", "--from", "journal", "--consumer", "ledger", "--id", "escaped:a%01b"}
		assert.Contains(t, s.run(args...).out, "1 message", "the key as the command shows it")
		s.exec(`UPDATE millrace_replays SET state = 3 WHERE name = ?`, []byte("may")) // cancelled
		for _, more := range [][]string{{"resume", "may"}, {"run", "may", "--from", "archive"}} {
			r := s.run(append([]string{"replay"}, more...)...)
			assert.Equal(t, 5, r.code, r.out)
			assert.Contains(t, r.err, `replay "may" was cancelled: start a new one under another name: nothing was changed`)
		}
	}))
}

// letters declares a queue with dead letters of order from to order to, and returns its name and the broker's.
func letters(t *testing.T, from, to int) (broker amqp.Config, queue string) {
	t.Helper()
	uri := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if uri == "" {
		testdb.Missing(t, "rabbitmq", "set MILLRACE_TEST_RABBITMQ")
	}
	queue = "millrace-replay-" + strings.ToLower(rand.Text())
	broker = rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{Quorum: true})
	require.NoError(t, rabbitmq.Declare(broker, queue))
	t.Cleanup(func() {
		conn, err := amqp091.Dial(uri)
		require.NoError(t, err)
		channel, err := conn.Channel()
		require.NoError(t, err)
		_, err = channel.QueueDelete(queue, false, false, false)
		assert.NoError(t, err)
		assert.NoError(t, conn.Close())
	})
	broker.Marshaler = died{of: "orders"}
	letter(t, broker, queue, from, to)
	return broker, queue
}

func letter(t *testing.T, broker amqp.Config, queue string, from, to int) {
	t.Helper()
	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	for n := from; n <= to; n++ {
		require.NoError(t, publisher.Publish(queue, order(n)))
	}
	require.NoError(t, publisher.Close())
}

// TestReplayFromRabbitMQ empties a queue of dead letters that somebody else has declared.
func TestReplayFromRabbitMQ(t *testing.T) {
	broker, queue := letters(t, 60, 62)
	s := newShop(t, testdb.On(t, "sqlite"))
	t.Setenv("MILLRACE_AMQP", broker.Connection.AmqpURI)
	again := []string{"replay", "run", "dead", "--from", "rabbitmq", "--queue", queue, "--reason", "mended", "--yes", "--idle", "1s"}
	r := s.run(again...)
	require.Zero(t, r.code, r.err)
	assert.Equal(t, "3 messages sent again; then nothing came for 1s\n", r.out)
	assert.Equal(t, 3, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE topic = 'orders' AND uuid IN (?, ?, ?) AND metadata LIKE ?`,
		id(60), id(61), id(62), `%"`+inbox.ReplayField+`":"dead"%`))
	letter(t, broker, queue, 63, 63)
	r = s.run(again...)
	assert.Equal(t, 5, r.code, r.out)
	assert.Contains(t, r.err, `replay "dead" was done at `)
	assert.Contains(t, r.err, `with 3 messages sent again: take another name for what is there now: nothing was changed`)
	again[2] = "later"
	r = s.run(append(again, "--limit", "1")...)
	require.Zero(t, r.code, r.err)
	assert.Equal(t, "1 message sent again; --limit 1 is reached\n", r.out)
	r = s.run("replay", "run", "gone", "--from", "rabbitmq", "--queue", queue+"-x", "--reason", "mended", "--yes", "--idle", "1s")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, queue+"-x")
}

// TestReplayThatLosesRabbitMQ: a queue that is out of reach is not empty, and the same command goes on.
func TestReplayThatLosesRabbitMQ(t *testing.T) {
	const most = 60
	broker, queue := letters(t, 1, most)
	s := newShop(t, testdb.On(t, "sqlite"))
	wire, through := servers.Before(t, broker.Connection.AmqpURI)
	t.Setenv("MILLRACE_AMQP", through)
	again := []string{"replay", "run", "dead", "--from", "rabbitmq", "--queue", queue, "--reason", "mended", "--yes", "--idle", "2s"}
	replayed := func() int {
		return s.count(`SELECT COUNT(DISTINCT uuid) FROM millrace_outbox WHERE metadata LIKE ?`, `%"`+inbox.ReplayField+`":"dead"%`)
	}
	ended := make(chan result, 1)
	go func() { ended <- s.run(append(again, "--rate", "1")...) }()
	rig.Eventually(t, "it has begun", func() bool { return replayed() > 0 })
	wire.Cut()
	r := <-ended
	assert.Equal(t, 1, r.code, r.out)
	assert.Contains(t, r.out, " sent again; the same run command goes on\n")
	assert.Contains(t, r.err, "Lost the connection to RabbitMQ: ")
	assert.Contains(t, r.err, "nothing came for 2s, and nobody can tell whether \""+queue+"\" is empty: rabbitmq: not connected to RabbitMQ")
	require.Less(t, replayed(), most)
	wire.Mend()
	r = s.run(again...)
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, " sent again; then nothing came for 2s\n")
	assert.Equal(t, most, replayed())
}

// died sets the header by which RabbitMQ says where a message died.
type died struct {
	rabbitmq.Marshaler
	of string // queue
}

func (d died) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := d.Marshaler.Marshal(msg)
	p.Headers["x-first-death-queue"] = d.of
	return p, err
}

// TestReplayFromSQL sends back what a PoisonQueue has left in a topic of the same database.
func TestReplayFromSQL(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			s := newShop(t, testdb.On(t, dialect))
			publisher, err := watermillsql.NewPublisher(s.db.DB, watermillsql.Config{})
			require.NoError(t, err)
			require.NoError(t, publisher.Initialize(t.Context(), "poison"))
			for n := 60; n <= 62; n++ {
				msg := order(n)
				msg.Metadata.Set(middleware.PoisonedTopicKey, "orders")
				msg.Metadata.Set(middleware.ReasonForPoisonedKey, "the bank is down")
				require.NoError(t, publisher.Publish("poison", msg))
			}
			if dialect == "postgres" { // where a transaction of another test holds messages back
				rig.Eventually(t, "the messages can be read", func() bool {
					return s.count(`SELECT COUNT(*) FROM watermill_poison WHERE transaction_id < pg_snapshot_xmin(pg_current_snapshot())`) == 3
				})
			}
			args := []string{"--from", "sql", "--queue", "poison", "--reason", "mended", "--yes", "--idle", "3s"}
			r := s.run(append([]string{"replay", "run", "dead"}, args...)...)
			require.Zero(t, r.code, r.err)
			assert.Equal(t, "3 messages sent again; then nothing came for 3s\n", r.out)
			r = s.run(append([]string{"replay", "run", "dead again"}, args...)...)
			require.Zero(t, r.code, r.err)
			assert.Equal(t, "0 messages sent again; then nothing came for 3s\n", r.out, "what was sent has left the queue, whatever the replay is called")
			assert.Equal(t, 3, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE topic = 'orders' AND uuid IN (?, ?, ?)
				AND metadata LIKE ? AND metadata NOT LIKE ?`,
				id(60), id(61), id(62), `%"`+inbox.ReplayField+`":"dead"%`, "%poisoned%"))
			r = s.run("replay", "run", "gone", "--from", "sql", "--queue", "nothing", "--reason", "mended", "--yes", "--idle", "1s")
			assert.Equal(t, 1, r.code)
			assert.Contains(t, r.err, "nothing")
			assert.Equal(t, "0 messages sent again; the same run command goes on\n", r.out, "resume does not know the queue")
		})
	}
}
