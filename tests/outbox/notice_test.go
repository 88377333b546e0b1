package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A relay that rests looks for messages once a second. It is told of each commit in its
// process, by NOTIFY of those in others, and by Wake of whatever the service knows. Other
// tests would take the processor from it.
func TestARelayIsToldOfCommits(t *testing.T) {
	for name, way := range map[string]func(p *post){
		"on its own pool": func(p *post) { p.slow(p.db) },
		"on another pool, by AfterCommit": func(p *post) {
			relay := p.slow(p.db.Open(p))
			p.out = p.publisher(func(c *outbox.Config) { c.AfterCommit = relay.Wake })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *testdb.DB) {
				p := newPost(t, db)
				way(p)
				p.isToldAtOnce()
			})
		})
	}
	t.Run("on another pool, by NOTIFY", func(t *testing.T) {
		t.Parallel()
		p := newPost(t, testdb.On(t, "postgres"))
		p.slow(p.db.Open(t))
		p.isToldAtOnce()
	})
}

// slow starts a relay that looks as rarely as it may.
func (p *post) slow(db *testdb.DB) *outbox.Relay {
	p.Helper()
	relay, err := outbox.NewRelay(db.DB, p.broker, outbox.RelayConfig{Logger: p.log, Poll: time.Minute})
	if err != nil {
		p.Fatal(err)
	}
	start(p.T, relay)
	p.broker.awaitAll(p, p.send("orders", "", 1))
	return relay
}

// isToldAtOnce sends messages to a relay at rest. That it looked by chance within so short a
// time after most of them is unlikely.
func (p *post) isToldAtOnce() {
	p.Helper()
	const tries, enough, soon = 5, 4, 200 * time.Millisecond
	told := 0
	for range tries {
		<-time.After(1500 * time.Millisecond) // by then it rests
		ids := p.send("orders", "", 1)
		committed := time.Now()
		p.broker.awaitAll(p, ids)
		if time.Since(committed) < soon {
			told++
		}
	}
	assert.GreaterOrEqual(p, told, enough, "messages that were sent at once, of %d", tries)
}
