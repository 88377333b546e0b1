// Package leasetest holds the behaviours of middleware.Deduplicate that every store of
// leases must have: one body each, run on memory, PostgreSQL, MariaDB, SQLite and Redis.
package leasetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
)

// Open returns the store of one more process: all that one Open returns share their keys.
type Open func(t *testing.T) lease.Store

// Body is one behaviour.
type Body struct {
	Name string // says the behaviour, unique
	Why  string // the rule that is broken when it fails
	Run  func(t *testing.T, open Open)
}

// Run runs every body on fresh stores.
func Run(t *testing.T, fresh func(t *testing.T) Open) {
	t.Helper()
	for _, b := range Bodies {
		t.Run(b.Name, func(t *testing.T) {
			b.Run(t, fresh(t))
			if t.Failed() {
				t.Logf("why: %s", b.Why)
			}
		})
	}
}

// process is a service that handles messages.
type process struct {
	*testing.T
	leases *inbox.Leases
	events *recorder
}

func start(t *testing.T, store lease.Store) *process {
	t.Helper()
	events := &recorder{}
	return &process{t, inbox.NewLeases(store, inbox.LeasesConfig{Observers: []inbox.Observer{events}}), events}
}

// wrap puts the middleware before h.
func (p *process) wrap(h message.HandlerFunc, change ...func(*millrace.Deduplicate)) message.HandlerFunc {
	d := millrace.Deduplicate{Claims: p.leases, Consumer: "mailer"}
	for _, c := range change {
		c(&d)
	}
	return d.Middleware(h)
}

func lasting(d time.Duration) func(*millrace.Deduplicate) {
	return func(m *millrace.Deduplicate) { m.Lease = d }
}

func wait(d time.Duration) func(*millrace.Deduplicate) {
	return func(m *millrace.Deduplicate) { m.Wait = d }
}

// patient waits for a copy for as long as a test waits for anything.
func patient(m *millrace.Deduplicate) { m.Wait = rig.Patience }

func consumer(name string) func(*millrace.Deduplicate) {
	return func(m *millrace.Deduplicate) { m.Consumer = name }
}

// deliver delivers a message with the given UUID.
func deliver(h message.HandlerFunc, uuid string) error {
	_, err := h(message.NewMessage(uuid, []byte(uuid)))
	return err
}

// counter is a handler that counts its runs.
type counter struct {
	mu   sync.Mutex
	runs map[string]int
}

func (c *counter) handle(msg *message.Message) ([]*message.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = map[string]int{}
	}
	c.runs[msg.UUID]++
	return nil, nil
}

func (c *counter) of(uuid string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[uuid]
}

// gate is a handler that waits to be told how to end.
type gate struct {
	entered chan struct{}
	result  chan error
}

func newGate() *gate { return &gate{make(chan struct{}), make(chan error)} }

func (g *gate) handle(*message.Message) ([]*message.Message, error) {
	g.entered <- struct{}{}
	return nil, <-g.result
}

// begin delivers message a to h, whose handler is g, and returns when it is being handled.
func (g *gate) begin(t *testing.T, h message.HandlerFunc) (done <-chan error) {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- deliver(h, "a") }()
	select {
	case <-g.entered:
	case err := <-result:
		require.NoError(t, err, "the handler was not run")
	}
	return result
}

// frozen is the store of a process that cannot extend its leases.
type frozen struct{ lease.Store }

// beating tells of the leases that it extended, as far as extended has room.
type beating struct {
	lease.Store
	extended chan error // nil, or that it was lost
}

func (b *beating) Extend(ctx context.Context, key lease.Key, token int64, d time.Duration) error {
	err := b.Store.(lease.Extender).Extend(ctx, key, token, d)
	if err == nil || errors.Is(err, inbox.ErrLeaseLost) {
		select {
		case b.extended <- err:
		default:
		}
	}
	return err
}

// spy tells when it answered that a key is held.
type spy struct {
	lease.Store
	held chan struct{}
}

func newSpy(store lease.Store) *spy { return &spy{store, make(chan struct{}, 1)} }

func (s *spy) Acquire(ctx context.Context, key lease.Key, token int64, d time.Duration) (lease.State, error) {
	state, err := s.Store.Acquire(ctx, key, token, d)
	if state.Status == lease.Held {
		select {
		case s.held <- struct{}{}:
		default:
		}
	}
	return state, err
}

// lossy loses the answers to the first calls.
type lossy struct {
	lease.Store
	mu                sync.Mutex
	acquires, confirm int // answers still to be lost
}

var errAnswerLost = errors.New("the answer got lost")

func (l *lossy) lose(n *int, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if *n == 0 || err != nil {
		return err
	}
	*n--
	return errAnswerLost
}

func (l *lossy) Acquire(ctx context.Context, key lease.Key, token int64, d time.Duration) (lease.State, error) {
	state, err := l.Store.Acquire(ctx, key, token, d)
	return state, l.lose(&l.acquires, err)
}

func (l *lossy) Confirm(ctx context.Context, key lease.Key, token int64, d time.Duration) error {
	return l.lose(&l.confirm, l.Store.Confirm(ctx, key, token, d))
}

// recorder counts events.
type recorder struct {
	mu   sync.Mutex
	seen map[string]int
}

// Observe counts.
func (r *recorder) Observe(_ context.Context, e inbox.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]int{}
	}
	r.seen[e.Kind.String()]++
}

func (r *recorder) count(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[kind]
}

// requireDelivery requires that err has cause and names the consumer.
func requireDelivery(t *testing.T, err, cause error) {
	t.Helper()
	require.ErrorIs(t, err, cause)
	var delivery *inbox.DeliveryError
	require.ErrorAs(t, err, &delivery)
	require.Equal(t, "mailer", delivery.Consumer)
}
