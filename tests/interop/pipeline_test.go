package interop_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// broker is what messages pass through.
type broker struct {
	topic string

	// publisher returns when the broker has what it was given.
	publisher message.Publisher

	// subscriber returns that of a new process. What the last process did not ack comes again.
	subscriber func() message.Subscriber

	// loses names metadata that does not arrive.
	loses []string

	// unordered says that messages may overtake each other.
	unordered bool

	// standstill is how long no message may arrive while faults happen, if it is bounded.
	standstill time.Duration
}

// freshTopic returns a name that every broker takes and nothing else uses.
func freshTopic() string { return "interop_" + strings.ToLower(rand.Text()) }

// service returns where a service of the tests is.
func service(t *testing.T, variable string) string {
	t.Helper()
	url := os.Getenv(variable)
	if url == "" {
		testdb.Missing(t, strings.ToLower(strings.TrimPrefix(variable, "MILLRACE_TEST_")),
			"set "+variable+`, or: eval "$(tests/services.sh)"`)
	}
	return url
}

// What becomes of the n-th message.
func isCopied(n int) bool   { return n%3 == 0 } // it is published twice more, past the outbox
func failsFirst(n int) bool { return n%4 == 1 } // the handler fails, the first time
func losesAck(n int) bool   { return n%5 == 2 } // it is handled, and yet delivered again
func interrupts(n int) bool { return n == 40 }  // the service is stopped while it is handled

// deliver publishes from transactions, a quarter of which are rolled back, and restarts the
// service that consumes while a handler runs. What was committed has its effect once, and
// arrives as it was published, and in the order of its key.
func deliver(t *testing.T, db *testdb.DB, b broker) {
	const half = 40
	p := newPipeline(t, db, b)
	closed := p.launch().closeAt(p.interrupted, "the handler is interrupted")
	relayUntilTheEnd(t, p.db, p.broker.publisher)
	p.produce(half)
	require.NoError(t, <-closed)
	p.produce(half)
	second := p.launch()
	require.EventuallyWithT(t, p.done, rig.Patience, 20*time.Millisecond)
	require.NoError(t, second.close())
	p.reconcile()
	if !b.unordered {
		p.checkOrder()
	}
}

// pipeline is an outbox, a broker, and a service with an inbox.
type pipeline struct {
	*testing.T
	db          *testdb.DB
	broker      broker
	out         *outbox.Publisher
	seen        *sightings
	interrupted chan struct{}

	transactions int
	numbers      int
	committed    map[string]*message.Message // by UUID
	copies       map[string]int              // published past the outbox
	rolledBack   []string
}

func newPipeline(t *testing.T, db *testdb.DB, b broker) *pipeline {
	t.Helper()
	out := rig.NewOutbox(t, db.DB, outbox.Config{OrderKey: outbox.ByMetadata("key")})
	require.NoError(t, out.Migrate(t.Context()))
	bytes := map[string]string{"postgres": "BYTEA", "mysql": "LONGBLOB", "sqlite": "BLOB"}[db.Dialect]
	db.Do(t, `CREATE TABLE effects (uuid VARCHAR(36), payload `+bytes+`, metadata TEXT)`)
	return &pipeline{
		T: t, db: db, broker: b, out: out, seen: newSightings(), interrupted: make(chan struct{}),
		committed: make(map[string]*message.Message), copies: make(map[string]int),
	}
}

var errRolledBack = errors.New("rolled back")

// produce publishes in n transactions.
func (p *pipeline) produce(n int) {
	p.Helper()
	for range n {
		msgs := p.letters()
		rollBack := p.transactions%4 == 3
		p.transactions++
		err := outbox.InTx(p.Context(), p.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
			for _, m := range msgs {
				m.SetContext(ctx)
			}
			err := p.out.Publish(p.broker.topic, msgs...) //nolint:contextcheck // the messages carry it
			if err != nil || !rollBack {
				return err
			}
			return errRolledBack
		})
		for _, m := range msgs {
			if rollBack {
				require.ErrorIs(p, err, errRolledBack)
				p.rolledBack = append(p.rolledBack, m.UUID)
				continue
			}
			require.NoError(p, err)
			p.committed[m.UUID] = m
			if isCopied(number(m)) {
				require.NoError(p, p.broker.publisher.Publish(p.broker.topic, m.Copy(), m.Copy()))
				p.copies[m.UUID] = 2
			}
		}
	}
}

// letters returns the messages of one transaction.
func (p *pipeline) letters() (msgs []*message.Message) {
	for range 1 + p.transactions%3 {
		m := message.NewMessage(watermill.NewUUID(), binary(p.numbers))
		m.Metadata = message.Metadata{
			"number":  strconv.Itoa(p.numbers),
			"key":     fmt.Sprintf("order-%d", p.transactions%5),
			"name":    "billing.InvoiceIssued", // as Watermill's CQRS names events
			"note":    `Grüße, "世界" & 🌍 <\>`,
			"ключ":    "значение",
			"nothing": "",
		}
		msgs = append(msgs, m)
		p.numbers++
	}
	return msgs
}

func number(msg *message.Message) int {
	n, err := strconv.Atoi(msg.Metadata.Get("number"))
	if err != nil {
		return -1
	}
	return n
}

// binary returns a payload that has every byte there is and is like no other.
func binary(n int) []byte {
	all := fmt.Append(nil, n)
	for b := range 256 {
		all = append(all, byte(b))
	}
	return all
}

func (p *pipeline) await(event <-chan struct{}, what string) {
	p.Helper()
	require.NoError(p, happens(event, what))
}

// happens waits for an event and is for any goroutine.
func happens(event <-chan struct{}, what string) error {
	select {
	case <-event:
		return nil
	case <-time.After(rig.Patience):
		return errors.New("never: " + what)
	}
}

func next(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-messages:
		require.NotNil(t, msg, "the subscription has ended")
		return msg
	case <-time.After(rig.Patience):
		require.Fail(t, "no message comes")
		return nil
	}
}

// end is closed when a subscription ends.
func end(messages <-chan *message.Message) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range messages { //nolint:revive // until it is closed
		}
	}()
	return ended
}

// done holds when the outbox is empty and every copy of every message was acked.
func (p *pipeline) done(c *assert.CollectT) {
	for uuid, m := range p.committed {
		want := 1 + p.copies[uuid]
		if interrupts(number(m)) {
			want++ // the first ack came too late
		}
		assert.GreaterOrEqual(c, p.seen.of(uuid).acks, want, "acks of message %d, %s", number(m), uuid)
	}
	backlog, err := p.out.Backlog(p.Context(), outbox.BacklogOptions{})
	require.NoError(c, err)
	assert.Zero(c, backlog.Unsent().N, "in the outbox")
}

// reconcile compares what was committed with what was done.
func (p *pipeline) reconcile() {
	p.Helper()
	var effects []struct {
		UUID     string `db:"uuid"`
		Payload  []byte `db:"payload"`
		Metadata string `db:"metadata"`
	}
	require.NoError(p, p.db.SelectContext(p.Context(), &effects, `SELECT uuid, payload, metadata FROM effects`))
	times := make(map[string]int)
	for _, e := range effects {
		times[e.UUID]++
		m := p.committed[e.UUID]
		if !assert.NotNil(p, m, "%s was not committed", e.UUID) {
			continue
		}
		arrives := maps.Clone(m.Metadata)
		for _, name := range p.broker.loses {
			delete(arrives, name)
		}
		assert.Equal(p, []byte(m.Payload), e.Payload, "payload of %s", e.UUID)
		assert.JSONEq(p, encode(arrives), e.Metadata, "metadata of %s", e.UUID)
	}
	deliveries := 0
	for uuid := range p.committed {
		deliveries += p.seen.of(uuid).deliveries
		assert.Equal(p, 1, times[uuid], "effects of %s", uuid)
		assert.Equal(p, 1, p.seen.of(uuid).completions, "completed runs of the handler for %s", uuid)
	}
	for _, uuid := range p.rolledBack {
		assert.Zero(p, p.seen.of(uuid).deliveries, "deliveries of %s, which was rolled back", uuid)
	}
	p.Logf("%d messages committed and %d rolled back, %d deliveries, %d effects",
		len(p.committed), len(p.rolledBack), deliveries, len(effects))
}

// checkOrder looks at first deliveries, without the messages of which the first to come may
// have been a copy.
func (p *pipeline) checkOrder() {
	p.Helper()
	last := make(map[string]int) // by key
	for _, uuid := range p.seen.order {
		m := p.committed[uuid]
		if m == nil || p.copies[uuid] > 0 {
			continue
		}
		key := m.Metadata.Get("key")
		assert.GreaterOrEqual(p, number(m), last[key], "message %s of key %s came late", uuid, key)
		last[key] = number(m)
	}
}
