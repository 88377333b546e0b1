package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// member is one of several relays on an outbox, with a pool and a way to the broker of its
// own.
type member struct {
	*running
	name string
	db   *faults.Faults
	link *link
	seen *events
}

// member starts a relay that is one of several.
func (p *post) member(name string, change ...func(*outbox.RelayConfig)) *member {
	p.Helper()
	m := p.prepare(name, change...)
	m.running = start(p.T, m.Relay)
	return m
}

// prepare makes a relay that does not run yet.
func (p *post) prepare(name string, change ...func(*outbox.RelayConfig)) *member {
	p.Helper()
	own := p.db.Open(p)
	if p.db.Dialect == "mysql" { // else statements are prepared, past what the test watches
		own = p.db.Open(p, testdb.Params("interpolateParams", "true"))
	}
	m := &member{name: name, db: faults.Open(p, own), link: &link{name: name, to: p.broker}, seen: &events{}}
	its := func(c *outbox.RelayConfig) {
		c.Logger, c.Name, c.Lease, c.MaxAttempts = named{p.log, name}, name, 15*time.Second, 0
	}
	change = append([]func(*outbox.RelayConfig){its, m.seen.observe}, change...)
	m.running = &running{Relay: p.relayOn(m.db.DB, m.link, change...)}
	return m
}

func leased(d time.Duration) func(*outbox.RelayConfig) {
	return func(c *outbox.RelayConfig) { c.Lease = d }
}

// named says which relay logs.
type named struct {
	*logbook
	name string
}

func (n named) Error(msg string, err error, f watermill.LogFields) {
	n.write(n.name+" error", msg, err, f)
}

func (n named) Info(msg string, f watermill.LogFields) { n.write(n.name+" info", msg, nil, f) }

func (n named) With(watermill.LogFields) watermill.LoggerAdapter { return n }

// link is a relay's way to the broker, which notes who sent a message. It can be blocked,
// so that calls wait, and cut, so that they fail.
type link struct {
	name string
	to   message.Publisher

	mu      sync.Mutex
	gate    chan struct{} // nil while open
	waiting int
	cut     error
}

func (l *link) Publish(topic string, msgs ...*message.Message) error {
	if err := l.pass(); err != nil {
		return err
	}
	for _, m := range msgs {
		m.Metadata.Set("relay", l.name)
	}
	return l.to.Publish(topic, msgs...)
}

func (l *link) pass() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.gate != nil {
		gate := l.gate
		l.waiting++
		l.mu.Unlock()
		<-gate
		l.mu.Lock()
		l.waiting--
	}
	return l.cut
}

func (*link) Close() error { return nil }

// block makes calls wait until open.
func (l *link) block() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate = make(chan struct{})
}

// open lets calls through, or has them fail.
func (l *link) open(cut error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if l.gate != nil {
		close(l.gate)
		l.gate = nil
	}
}

func (l *link) blocked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// share is of how many shards the member was told last, -1 if of none.
func (m *member) share() int {
	all := m.seen.of("shards")
	if len(all) == 0 {
		return -1
	}
	return all[len(all)-1].Count
}

// owners is how many shards of the present layout each relay owns by the tables; "" owns
// those that nobody alive does.
func (p *post) owners() map[string]int {
	p.Helper()
	var rows []struct {
		Name   string `db:"name"`
		Shards int    `db:"shards"`
	}
	require.NoError(p, p.db.SelectContext(p.Context(), &rows, `
		SELECT COALESCE(r.name, '') AS name, COUNT(*) AS shards
		FROM millrace_outbox_shards s
		JOIN millrace_outbox_layout l ON l.generation = s.generation
		LEFT JOIN millrace_outbox_relays r ON r.token = s.owner
		GROUP BY COALESCE(r.name, '')`))
	owners := make(map[string]int)
	for _, r := range rows {
		owners[r.Name] = r.Shards
	}
	return owners
}

// shards are how many there are.
const shards = 64

// shared waits until the members, and nobody else, own all shards in fair parts, by the
// tables and by what each was told.
func (p *post) shared(members ...*member) {
	p.Helper()
	fair := func() bool {
		owners := p.owners()
		least, most, sum := shards/len(members), (shards+len(members)-1)/len(members), 0
		for _, m := range members {
			n := owners[m.name]
			sum += n
			if n < least || n > most || m.share() != n {
				return false
			}
		}
		return sum == shards
	}
	rig.Eventually(p, fmt.Sprintf("%d shards are shared fairly by %d", shards, len(members)), fair)
}

// former has the tables say what a relay of an earlier release left, that divided the keys into n shards.
func (p *post) former(n int) {
	p.Helper()
	p.db.Do(p, `DELETE FROM millrace_outbox_shards`)
	p.db.Do(p, `DELETE FROM millrace_outbox_layout`)
	p.db.Do(p, fmt.Sprintf(`INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 3, %d, %d)`, n, n))
	for shard := range n {
		p.db.Do(p, fmt.Sprintf(`INSERT INTO millrace_outbox_shards (generation, shard, owner) VALUES (3, %d, 0)`, shard))
	}
}

// spread sends n messages on each of many keys, enough that every shard has some.
func (p *post) spread(keys, n int) (byKey map[string][]string, all []string) {
	p.Helper()
	byKey = make(map[string][]string)
	for i := range keys {
		key := fmt.Sprintf("key %d", i)
		byKey[key] = p.send("orders", key, n)
		all = append(all, byKey[key]...)
	}
	return byKey, all
}

// inOrder checks that first deliveries were in order, key by key.
func (p *post) inOrder(want map[string][]string) {
	p.Helper()
	for key, ids := range want {
		assert.Equal(p, ids, p.broker.firsts(key), "first deliveries of %s", key)
	}
}

// senders are the relays that sent a message, in order.
func (b *memoryBroker) senders() map[string][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	senders := make(map[string][]string)
	for _, m := range b.sent {
		senders[m.UUID] = append(senders[m.UUID], m.Metadata.Get("relay"))
	}
	return senders
}

// onceEach checks that no message was sent twice.
func (p *post) onceEach() {
	p.Helper()
	for id, relays := range p.broker.senders() {
		assert.Len(p, relays, 1, "message %s was sent by %v", id, relays)
	}
}

// on makes a plan that calls what for statements that contain all the words, before they
// are executed.
func on(what func(ctx context.Context) error, words ...string) faults.Plan {
	return faults.Plan{Before: func(ctx context.Context, call string) error {
		if says(call, words...) {
			return what(ctx)
		}
		return nil
	}}
}

// says reports whether a statement contains all the words, whatever its spaces.
func says(call string, words ...string) bool {
	text := strings.Join(strings.Fields(call), " ")
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// What the keeper of a relay says.
var (
	beats  = []string{"UPDATE millrace_outbox_relays SET until"}
	claims = []string{"UPDATE millrace_outbox_shards SET owner", ">> shard"}
)
