package outbox_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The following run what a relay does with failures and order on every database. Most of
// their time is spent waiting, so they wait together.

func TestRelayOrderConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, slices.Concat(relayOrderBodies, relayEndBodies))
}

func TestRelayFailureConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, slices.Concat(relayFailureBodies, relayRowBodies, relayBatchBodies))
}

func TestRelayOutageConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, slices.Concat(relayOutageBodies, relayTopicBodies))
}

func TestRelayParkedConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, slices.Concat(relayParkedBodies, relayRetentionBodies))
}

// strict is a broker that checks what it is given: no message of a key before all earlier
// ones are confirmed, and no more of a key in one call than burst.
type strict struct {
	*testing.T
	*watched

	burst  int
	way    way
	refuse func(topic string, msg *message.Message) error
	before func() // each call, without the lock

	numbers map[string]int // of the next letter, by key
	passed  map[string]map[int]bool
	sent    []*message.Message // what consumers see, duplicates too
	calls   []brokerCall
	running int
	faults  []string
}

type brokerCall struct {
	began time.Time
	topic string
	uuids []string
	err   error
	alone bool // no other call ran at the same time
}

// way is how a broker fails a call of several messages.
type way int

const (
	sequential way = iota // takes those before the first that is refused
	harsh                 // takes all but those that are refused, and does not say so
	whole                 // takes none
	partial               // takes all but those that are refused, and says so
	panicking             // takes those before the first that is refused
	ways
)

func newStrict(t *testing.T) *strict {
	t.Helper()
	b := &strict{T: t, watched: newWatched(), burst: 1, numbers: make(map[string]int), passed: make(map[string]map[int]bool)}
	t.Cleanup(func() { assert.Empty(t, b.faults, "messages were given out of order") })
	return b
}

// strictly returns a body that has an outbox and a strict broker.
func strictly(body func(t *testing.T, p *post, b *strict)) func(*testing.T, *testdb.DB) {
	return func(t *testing.T, db *testdb.DB) { body(t, newPost(t, db), newStrict(t)) }
}

// letters makes messages that carry their place in their key.
func (b *strict) letters(key string, n int) []*message.Message {
	msgs := letters(key, n)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range msgs {
		m.Metadata.Set("number", strconv.Itoa(b.numbers[key]))
		b.numbers[key]++
	}
	return msgs
}

func (b *strict) Publish(topic string, msgs ...*message.Message) (err error) {
	b.mu.Lock()
	before := b.before
	b.running++
	call := brokerCall{began: time.Now(), topic: topic, uuids: uuids(msgs), alone: b.running == 1}
	b.check(msgs)
	b.mu.Unlock()
	if before != nil {
		before()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.changed.Broadcast()
	b.running--
	defer func() { b.calls = append(b.calls, call) }()
	err = b.take(topic, msgs)
	call.err = err
	if err != nil && b.way == panicking {
		panic(err)
	}
	return err
}

func (*strict) Close() error { return nil }

func number(m *message.Message) (key string, n int) {
	n, _ = strconv.Atoi(m.Metadata.Get("number")) // set by letters
	return m.Metadata.Get("key"), n
}

// check notes every message that comes too early.
func (b *strict) check(msgs []*message.Message) {
	given := make(map[string]int)
	for _, m := range msgs {
		key, n := number(m)
		if key == "" {
			continue
		}
		missing := 0
		for i := range n {
			if !b.passed[key][i] {
				missing++
			}
		}
		if missing > given[key] {
			b.faults = append(b.faults, fmt.Sprintf("message %d of key %q was given before an earlier one", n, key))
		}
		if given[key]++; given[key] > b.burst {
			b.faults = append(b.faults, fmt.Sprintf("%d messages of key %q in one call", given[key], key))
		}
	}
}

func (b *strict) take(topic string, msgs []*message.Message) error {
	errs := make([]error, len(msgs))
	var failed error
	for i, m := range msgs {
		if b.refuse != nil {
			errs[i] = b.refuse(topic, m)
		}
		if failed == nil {
			failed = errs[i]
		}
	}
	for i, m := range msgs {
		if errs[i] != nil && (b.way == sequential || b.way == panicking) {
			break
		}
		if errs[i] == nil && (failed == nil || b.way != whole) {
			b.sent = append(b.sent, m)
			if failed == nil || b.way == partial {
				b.pass(m)
			}
		}
	}
	if failed != nil && b.way == partial {
		return &outbox.PartialError{Errors: errs}
	}
	return failed
}

func (b *strict) pass(m *message.Message) {
	key, n := number(m)
	if b.passed[key] == nil {
		b.passed[key] = make(map[int]bool)
	}
	b.passed[key][n] = true
}

// excuse allows messages behind this one.
func (b *strict) excuse(msgs ...*message.Message) {
	b.with(func() {
		for _, m := range msgs {
			b.pass(m)
		}
	})
}

// refusing changes what is refused; nil for nothing.
func (b *strict) refusing(refuse func(topic string, msg *message.Message) error) {
	b.with(func() { b.refuse = refuse })
}

// awaitAll waits for every message to be with consumers.
func (b *strict) awaitAll(ids []string) {
	b.Helper()
	b.until(b.T, fmt.Sprintf("all %d messages are sent", len(ids)), func() bool { return haveAll(b.sent, ids) })
}

// counts is how often each message was sent.
func (b *strict) counts() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return countByUUID(b.sent)
}

// given is how often the publisher was given a message.
func (b *strict) given(id string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if slices.Contains(c.uuids, id) {
			n++
		}
	}
	return n
}

// once checks that each message was sent, and once only.
func (b *strict) once(ids []string) {
	b.Helper()
	counts := b.counts()
	for _, id := range ids {
		assert.Equal(b.T, 1, counts[id], "times that message %s was sent", id)
	}
}
