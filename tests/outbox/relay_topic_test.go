package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayTopicBodies = []testdb.Body{
	{
		Name: "one dead topic", Why: "it is no outage: the rest flows, and its messages come in order when it heals",
		Run: deadTopic,
	},
	{
		Name: "a dead topic at the head of the table",
		Why:  "more of its messages than a relay has in hand hide none of a topic that works",
		Run:  deadHead,
	},
}

// dead refuses a topic.
func dead(topic string, _ *message.Message) error {
	if topic == "dead" {
		return errRefused
	}
	return nil
}

func deadTopic(t *testing.T, db *testdb.DB) {
	p, b, seen := newPost(t, db), newStrict(t), &events{}
	b.refusing(dead)
	p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) {
		c.MinBackoff, c.MaxBackoff = 100*time.Millisecond, time.Second
	})
	var alive, behind []string
	for i := range 30 {
		alive = append(alive, p.store("alive", b.letters(fmt.Sprintf("a%d", i%4), 1)...)...)
		behind = append(behind, p.store("dead", b.letters("", 1)...)...)
		// Keys of both topics, and so what would flow has to wait for what does not.
		alive = append(alive, p.store("alive", b.letters(fmt.Sprintf("both%d", i), 1)...)...)
		behind = append(behind, p.store("dead", b.letters(fmt.Sprintf("both%d", i), 1)...)...)
		behind = append(behind, p.store("alive", b.letters(fmt.Sprintf("both%d", i), 1)...)...)
	}
	b.awaitAll(alive)
	tries, began := b.triesOf("dead"), time.Now()
	for range 20 { // time passes for what fails, and not for what flows
		b.awaitAll(p.store("alive", b.letters("", 1)...))
	}
	tries, took := b.triesOf("dead")-tries, time.Since(began)
	assert.Less(t, tries, max(400, int(100*took.Seconds())), "calls of a topic that is dead, in %v", took)
	assert.NotEmpty(t, seen.of("attempt"))
	b.refusing(nil)
	b.awaitAll(behind)
	rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
	b.once(alive)
}

// triesOf counts the calls of a topic.
func (b *strict) triesOf(topic string) (n int) {
	b.with(func() {
		for _, c := range b.calls {
			if c.topic == topic {
				n++
			}
		}
	})
	return n
}

func deadHead(t *testing.T, db *testdb.DB) {
	p, b := newPost(t, db), newStrict(t)
	b.refusing(dead)
	var behind []string
	for i := range 8 {
		behind = append(behind, p.store("dead", append(b.letters("", 2), b.letters(fmt.Sprintf("k%d", i%5), 2)...)...)...)
	}
	for i := range 5 {
		behind = append(behind, p.store("alive", b.letters(fmt.Sprintf("k%d", i), 1)...)...)
	}
	alive := p.store("alive", append(b.letters("", 10), b.letters("a", 3)...)...)
	p.relayTo(b, func(c *outbox.RelayConfig) { c.Batch, c.Lanes, c.MaxBackoff = 5, 2, time.Second })
	b.awaitAll(alive)
	b.refusing(nil)
	b.awaitAll(behind)
	rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
}
