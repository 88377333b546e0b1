package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var (
	errBroken  = errors.New("the handler is broken")
	errAckLost = errors.New("the ack is lost")
)

// bed is a service with a ledger: what its handler did, by message.
type bed struct {
	*testing.T
	db     *testdb.DB
	store  *inbox.Store
	events *rig.Events

	fixed atomic.Bool // the handler fails for messages that are "bad" until then

	mu   sync.Mutex
	last map[string]message.Metadata // what the handler's last run was given, by UUID
	runs map[string]int              // that reached the end, by UUID
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db, events: &rig.Events{}, last: map[string]message.Metadata{}, runs: map[string]int{}}
	b.store = b.process()
	require.NoError(t, b.store.Migrate(t.Context()))
	b.exec(`CREATE TABLE ledger (uuid VARCHAR(60) NOT NULL, payload VARCHAR(200) NOT NULL)`)
	return b
}

// process returns the store of another process of the service.
func (b *bed) process(change ...func(*inbox.Config)) *inbox.Store {
	b.Helper()
	config := inbox.Config{Observers: []inbox.Observer{b.events}, Logger: b.events, AllowPayloadChange: true}
	for _, c := range change {
		c(&config)
	}
	return rig.NewStore(b, b.db.Open(b).DB, config)
}

// handle writes into the ledger, and then fails where it is broken.
func (b *bed) handle(msg *message.Message) error {
	if err := rig.Exec(msg.Context(), `INSERT INTO ledger (uuid, payload) VALUES (?, ?)`, msg.UUID, string(msg.Payload)); err != nil {
		return err
	}
	if msg.Metadata.Get("kind") == "bad" && !b.fixed.Load() {
		return errBroken
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last[msg.UUID] = msg.Copy().Metadata
	b.runs[msg.UUID]++
	return nil
}

// given returns the metadata of the last run for msg.
func (b *bed) given(msg *message.Message) message.Metadata {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last[msg.UUID]
}

// ledger is what was committed: payloads by UUID.
type ledger map[string][]string

func (b *bed) ledger() ledger {
	b.Helper()
	rows, err := b.db.QueryxContext(context.WithoutCancel(b.Context()), `SELECT uuid, payload FROM ledger ORDER BY payload`)
	require.NoError(b, err)
	defer func() { require.NoError(b, rows.Close()) }()
	all := ledger{}
	for rows.Next() {
		var uuid, payload string
		require.NoError(b, rows.Scan(&uuid, &payload))
		all[uuid] = append(all[uuid], payload)
	}
	require.NoError(b, rows.Err())
	return all
}

// once is the ledger in which each of messages has its effect once.
func once(messages ...*message.Message) ledger {
	all := ledger{}
	for _, msg := range messages {
		all[msg.UUID] = []string{string(msg.Payload)}
	}
	return all
}

func (b *bed) exec(query string, args ...any) { b.Helper(); b.db.Do(b, query, args...) }

func (b *bed) count(query string, args ...any) int {
	b.Helper()
	return b.db.Count(b, query, args...)
}

// parked counts the messages that wait for an operator.
func (b *bed) parked() int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, admin.Parked)
}

// nothingOpen says that no message waits for anything.
func (b *bed) nothingOpen() {
	b.Helper()
	require.Equal(b, 0, b.count(`SELECT COUNT(*) FROM millrace_messages`))
	require.Equal(b, 0, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`))
}

// forget makes the inbox forget what it has handled, as after its retention.
func (b *bed) forget(want int) {
	b.Helper()
	b.exec(`UPDATE millrace_claims SET processed_at = processed_at - ?`, (8 * 24 * time.Hour).Microseconds())
	n := rig.Purge(b, b.store)
	require.Equal(b, want, n)
}

// endsIn waits until the ledger is as it should be.
func (b *bed) endsIn(want ledger) {
	b.Helper()
	require.EventuallyWithT(b, func(c *assert.CollectT) { assert.Equal(c, want, b.ledger()) }, rig.Patience, 10*time.Millisecond)
}

// start runs a router with what configure adds, and returns how to stop it.
func (b *bed) start(store *inbox.Store, configure func(*message.Router)) (stop func()) {
	b.Helper()
	router := rig.NewRouter(b)
	if store != nil {
		router.AddPlugin(store.Plugin())
	}
	configure(router)
	stopped := rig.Run(b, router)
	stop = sync.OnceFunc(func() {
		require.NoError(b, router.Close())
		require.NoError(b, <-stopped)
		if store != nil {
			require.NoError(b, store.Close(context.WithoutCancel(b.Context())))
		}
	})
	b.Cleanup(stop)
	return stop
}

// newMessages returns messages with what a message has to keep on its way, every second one bad.
func newMessages(n int) []*message.Message {
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "payload %03d", i))
		all[i].Metadata = message.Metadata{
			"key": fmt.Sprint("order-", i%3), "correlation_id": fmt.Sprint("correlation-", i),
			"causation_id": watermill.NewUUID(), "kind": []string{"good", "bad"}[i%2],
		}
	}
	return all
}

// of returns the messages of a kind.
func of(kind string, messages []*message.Message) (chosen []*message.Message) {
	for _, msg := range messages {
		if msg.Metadata.Get("kind") == kind {
			chosen = append(chosen, msg)
		}
	}
	return chosen
}

// keeps says that the handler was given what msg was sent with.
func (b *bed) keeps(msg *message.Message) {
	b.Helper()
	given := b.given(msg)
	for name, value := range msg.Metadata {
		require.Equal(b, value, given[name], name)
	}
}

// service returns where a service of the tests is.
func service(t testing.TB, variable string) string {
	t.Helper()
	url := os.Getenv(variable)
	if url == "" {
		testdb.Missing(t, variable, "set "+variable+`, or: eval "$(tests/services.sh)"`)
	}
	return url
}
