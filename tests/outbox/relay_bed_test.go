package outbox_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	mu      sync.Mutex
	changed *sync.Cond

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
	b := &strict{T: t, burst: 1, numbers: make(map[string]int), passed: make(map[string]map[int]bool)}
	b.changed = sync.NewCond(&b.mu)
	t.Cleanup(func() { assert.Empty(t, b.faults, "messages were given out of order") })
	return b
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

// Publish implements message.Publisher.
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

// Close implements message.Publisher.
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

func (b *strict) with(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	b.changed.Broadcast()
}

// refusing changes what is refused; nil for nothing.
func (b *strict) refusing(refuse func(topic string, msg *message.Message) error) {
	b.with(func() { b.refuse = refuse })
}

// await waits until a condition on what the broker saw holds.
func (b *strict) await(what string, enough func() bool) {
	b.Helper()
	late := time.AfterFunc(time.Minute, b.changed.Broadcast)
	defer late.Stop()
	began := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for !enough() {
		if time.Since(began) > 59*time.Second {
			require.FailNow(b.T, "never: "+what, "%d messages were sent in %d calls", len(b.sent), len(b.calls))
		}
		b.changed.Wait()
	}
}

// awaitAll waits for every message to be with consumers.
func (b *strict) awaitAll(ids []string) {
	b.Helper()
	b.await(fmt.Sprintf("all %d messages are sent", len(ids)), func() bool {
		counts := b.countLocked()
		return !slices.ContainsFunc(ids, func(id string) bool { return counts[id] == 0 })
	})
}

// counts is how often each message was sent.
func (b *strict) counts() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.countLocked()
}

func (b *strict) countLocked() map[string]int {
	counts := make(map[string]int)
	for _, m := range b.sent {
		counts[m.UUID]++
	}
	return counts
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
