package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The database and RabbitMQ are killed and started again, and the network to either is cut
// and silent, while transactions store messages of which a third are rolled back. What was
// committed is in RabbitMQ, in the order of its key, and nothing else is; a message that is
// there twice has one UUID. None is parked: what was on its way when an outage began may
// spend one attempt, since others were confirmed, and nothing spends more.
//
// A RabbitMQ takes seconds of two processors to start, so both databases relay to one. One of the
// outages is tried at a time.
func TestOutagesUnderLoad(t *testing.T) {
	testdb.Turn(t, 1, outages)
	t.Parallel()
	rabbit := servers.RabbitMQ(t)
	require.NoError(t, rabbitmq.Declare(rabbitmq.NewQueueConfig(rabbit.URL(), rabbitmq.Queues{}), "postgres", "mysql"))
	cities := []*city{
		newCity(t, "postgres", servers.Postgres(t), rabbit),
		newCity(t, "mysql", servers.MariaDB(t), rabbit),
	}
	for _, c := range cities {
		c.stop = c.load(c.traffic, 4)
		c.flows(50)()
	}
	for _, o := range testdb.Sample(t, 1, []outage{
		{"RabbitMQ is killed", func(c *city) { c.rabbit.Kill() }, func(c *city) { c.rabbit.Start() }},
		{"the network to RabbitMQ is cut", func(c *city) { c.toRabbit.Cut() }, func(c *city) { c.toRabbit.Mend() }},
		{"the network to RabbitMQ is silent", func(c *city) { c.toRabbit.Freeze() }, func(c *city) { c.toRabbit.Thaw() }},
		{"the database is killed", func(c *city) { c.database.Kill() }, func(c *city) { c.database.Start() }},
		{"the network to the database is cut", func(c *city) { c.toDatabase.Cut() }, func(c *city) { c.toDatabase.Mend() }},
		{"the network to the database is silent", func(c *city) { c.toDatabase.Freeze() }, func(c *city) { c.toDatabase.Thaw() }},
	}) {
		suffer(cities, o)
	}
	for _, c := range cities {
		c.stop()
		c.reconcile()
	}
}

// outage is a way in which something goes away and comes back. What is away already is not
// taken away again.
type outage struct {
	what       string
	begin, end func(*city)
}

// suffer has an outage last until the relays of all cities have met it.
func suffer(cities []*city, o outage) {
	var met, flow []func()
	for _, c := range cities {
		met = append(met, c.meets(o.what))
	}
	for _, c := range cities {
		o.begin(c)
	}
	for _, m := range met {
		m()
	}
	for _, c := range cities {
		o.end(c)
		flow = append(flow, c.flows(50))
	}
	for _, f := range flow {
		f()
	}
}

// city is a town with relays and a queue of its own, between a database and a RabbitMQ that
// a test may kill and cut off.
type city struct {
	*town
	seen                 *events
	published            atomic.Int64
	rabbit, database     *servers.Server
	toRabbit, toDatabase *servers.Wire
	outages              int
	relays               []*running
	stop                 func() // storing
}

const (
	cityBatch  = 50
	cityRelays = 2
)

func newCity(t *testing.T, dialect string, database, rabbit *servers.Server) *city {
	t.Helper()
	db := testdb.At(t, dialect, database.DSN())
	db.SetMaxIdleConns(0) // an outage breaks them
	c := &city{town: newTown(t, db), seen: &events{}, rabbit: rabbit, database: database}
	c.traffic = c.trafficOn(db.Open(t), "t") // connections of a service, which it keeps
	c.traffic.Topic, c.traffic.Pause = dialect, 50*time.Millisecond
	c.toRabbit, c.toDatabase = servers.Proxy(t, c.rabbit.Addr()), servers.Proxy(t, database.Addr())
	for n := range cityRelays {
		c.relays = append(c.relays, c.relay(fmt.Sprintf("relay %d", n),
			rabbitmq.NewQueueConfig("amqp://guest:guest@"+c.toRabbit.Addr()+"/", rabbitmq.Queues{})))
	}
	return c
}

// relay starts one that reaches the database and RabbitMQ through the proxies.
func (c *city) relay(name string, broker amqp.Config) *running {
	c.Helper()
	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{Timeout: 5 * time.Second})
	require.NoError(c, err)
	c.Cleanup(func() { assert.NoError(c, publisher.Close()) })
	own := c.db.Open(c, testdb.Via(c.toDatabase.Addr()))
	relay, err := outbox.NewRelay(own.DB, publisher, outbox.RelayConfig{
		Logger: named{c.log, name}, Name: name, Lease: 2 * time.Second, Batch: cityBatch,
		MinBackoff: 50 * time.Millisecond, MaxBackoff: 500 * time.Millisecond, Poll: 100 * time.Millisecond,
		Observers: []outbox.Observer{outbox.On(c.observe, outbox.KindPublished, outbox.KindOutage), c.seen},
	})
	require.NoError(c, err)
	return start(c.T, relay)
}

// observe counts what is sent, and keeps what a failure is explained by.
func (c *city) observe(_ context.Context, e outbox.Event) {
	if e.Kind == outbox.KindPublished {
		c.published.Add(int64(e.Count))
		return
	}
	c.log.write("outage", e.Reason+" after "+e.Duration.String(), e.Err, nil)
}

// flows returns what waits until so many more transactions were committed and messages sent.
func (c *city) flows(n int64) (wait func()) {
	stored, sent := c.traffic.Stored.Load(), c.published.Load()
	return func() {
		c.Helper()
		rig.Eventually(c, c.db.Dialect+": messages flow", func() bool {
			return c.traffic.Stored.Load() >= stored+n && c.published.Load() >= sent+n
		})
	}
}

// meets returns what waits until the relays have met an outage that begins now.
func (c *city) meets(what string) (wait func()) {
	c.outages++
	before := len(c.log.all())
	return func() {
		c.Helper()
		rig.Eventually(c, what+", and the relays say so: "+c.db.Dialect, func() bool { return len(c.log.all()) > before })
	}
}

// reconcile reads the queue and compares it with what was committed.
func (c *city) reconcile() {
	c.Helper()
	rig.Eventually(c, "the outbox is empty", func() bool { return c.rows() == 0 })
	for _, r := range c.relays {
		require.NoError(c, r.stop())
	}
	for _, m := range readAll(c.T, c.rabbit.URL(), c.traffic.Topic) {
		require.NoError(c, c.broker.Publish(c.traffic.Topic, m))
	}
	lost := 0 // how often a busy machine had a relay lose its lease
	for _, line := range c.log.all() {
		if strings.Contains(line, "the relay starts over") {
			lost++
		}
	}
	duplicates := c.check()
	assert.LessOrEqual(c, duplicates, (c.outages*cityRelays+lost)*2*cityBatch, "more than the relays had in hand")
	assert.Empty(c, c.seen.of("parked"))
	for _, e := range c.seen.of("attempt") {
		assert.LessOrEqual(c, e.Attempts, c.outages, "attempts of %s: %v", e.UUID, e.Err)
	}
}

// readAll takes everything that is ready in a queue.
func readAll(t *testing.T, url, queue string) []*message.Message {
	t.Helper()
	conn, err := amqp091.Dial(url)
	require.NoError(t, err)
	defer func() { assert.NoError(t, conn.Close()) }()
	channel, err := conn.Channel()
	require.NoError(t, err)
	var all []*message.Message
	for {
		d, found, err := channel.Get(queue, true)
		require.NoError(t, err)
		if !found {
			return all
		}
		m, err := rabbitmq.Marshaler{}.Unmarshal(d)
		require.NoError(t, err)
		all = append(all, m)
	}
}
