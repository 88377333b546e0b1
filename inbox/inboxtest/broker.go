package inboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/stored"
)

// How often the broker delivers a message that is refused.
const (
	atOnce   = 3  // in a row
	attempts = 30 // in all …
	known    = 3  // … and in all if a wiring mistake was found
)

// broker holds all messages that the processes of a play get and publish.
type broker struct {
	play *play

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change
	names     map[string]int
	sent      map[string][]*letter // by topic: all messages that were ever in it
	queues    map[queueName]*queue
	inFlight  int
	published []published
	givenUp   *message.Message // see play.refusable
}

type queueName struct{ topic, group string }

// queue holds the messages of a topic for one group.
type queue struct {
	waiting []*letter
	handed  map[*letter]*Process
}

// letter is a message for one group.
type letter struct {
	name  string // in the timeline
	topic string
	msg   *message.Message
	tries int
	only  *Process         // the only receiver, if it is a copy
	now   *message.Message // the copy that was handed out last
}

// published is a message that the broker accepted, whether the process learned of that or not.
type published struct {
	topic string
	msg   *message.Message
}

func newBroker(pl *play, inputs []Input) *broker {
	b := &broker{
		play: pl, changed: make(chan struct{}), names: map[string]int{},
		sent: map[string][]*letter{}, queues: map[queueName]*queue{},
	}
	b.deliver(inputs)
	return b
}

// deliver puts inputs into their topics.
func (b *broker) deliver(inputs []Input) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, in := range inputs {
		b.add(fmt.Sprintf("m%d", i+1), in.Topic, in.Message)
	}
}

// add puts a message into a topic, for all groups. The caller holds the lock.
func (b *broker) add(name, topic string, msg *message.Message) {
	l := letter{name: name, topic: topic, msg: msg}
	b.sent[topic] = append(b.sent[topic], &l)
	for n, q := range b.queues {
		if n.topic == topic {
			other := l
			q.waiting = append(q.waiting, &other)
		}
	}
}

// change wakes all waiters. The caller holds the lock.
func (b *broker) change() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// open creates a queue with all messages that were ever in the topic.
func (b *broker) open(n queueName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queues[n] != nil {
		return
	}
	q := &queue{handed: map[*letter]*Process{}}
	for _, l := range b.sent[n.topic] {
		other := *l
		q.waiting = append(q.waiting, &other)
	}
	b.queues[n] = q
}

// next waits for a message for p.
func (b *broker) next(ctx context.Context, p *Process, n queueName) (*delivery, error) {
	for {
		b.mu.Lock()
		q := b.queues[n]
		d := b.take(p, q)
		changed := b.changed
		b.mu.Unlock()
		if d != nil {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.life.Done():
			return nil, errDead
		case <-changed:
		}
	}
}

// take returns the first message that p may get now, or nil.
func (b *broker) take(p *Process, q *queue) *delivery {
	turn := p == b.play.leader() && b.inFlight < b.play.scenario.InFlight
	i := slices.IndexFunc(q.waiting, func(l *letter) bool { return l.only == p || l.only == nil && turn })
	if i < 0 || p.dead() || p.stopping.Load() {
		return nil
	}
	l := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.handed[l] = p
	if l.only == nil {
		b.inFlight++
	}
	l.tries++
	return &delivery{letter: l, copied: l.only != nil, try: l.tries}
}

// acked removes a message that p has acked.
func (b *broker) acked(p *Process, n queueName, l *letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.release(p, b.queues[n], l) {
		b.change()
	}
}

// release takes a message from p and reports whether p still had it.
func (b *broker) release(p *Process, q *queue, l *letter) (had bool) {
	if q.handed[l] != p {
		return false
	}
	delete(q.handed, l)
	if l.only == nil {
		b.inFlight--
	}
	l.only = nil
	return true
}

// refused queues a message for redelivery: as the next one, or, if that did not help, behind the others.
func (b *broker) refused(p *Process, n queueName, l *letter) {
	most := b.most()
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[n]
	if !b.release(p, q, l) {
		return
	}
	switch {
	case l.msg == b.play.refusable && l.tries >= most:
		b.givenUp = l.msg
	case l.tries%atOnce != 0:
		q.waiting = slices.Insert(q.waiting, 0, l)
	default:
		q.waiting = append(q.waiting, l)
	}
	b.change()
}

// gaveUp reports whether msg was refused so often that it is no longer delivered.
func (b *broker) gaveUp(msg *message.Message) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return msg != nil && b.givenUp == msg
}

// hear waits until the broker has received the acks that p has already given.
func (b *broker) hear(p *Process) {
	still := time.NewTimer(standstill)
	defer still.Stop()
	for {
		b.mu.Lock()
		given, changed := b.answered(p), b.changed
		b.mu.Unlock()
		if !given {
			return
		}
		select {
		case <-changed:
		case <-still.C:
			return
		}
	}
}

func (b *broker) answered(p *Process) bool {
	for _, q := range b.queues {
		for l, holder := range q.handed {
			if holder != p || l.now == nil {
				continue
			}
			select {
			case <-l.now.Acked():
				return true
			default:
			}
		}
	}
	return false
}

// abandon takes back the unanswered messages of a process that is gone.
func (b *broker) abandon(p *Process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.queues {
		for l, holder := range q.handed {
			if holder == p {
				b.release(p, q, l)
				q.waiting = slices.Insert(q.waiting, 0, l)
			}
		}
		for _, l := range q.waiting {
			if l.only == p {
				l.only = nil
			}
		}
	}
	b.change()
}

// unanswered describes a message that was not acked, or returns "" if all were.
func (b *broker) unanswered() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, q := range b.queues {
		for _, l := range q.waiting {
			return fmt.Sprintf("%s of %s waits to be delivered, for the %s time", l.name, n.topic, ordinal(l.tries+1))
		}
		for l := range q.handed {
			return fmt.Sprintf("%s of %s is unanswered", l.name, n.topic)
		}
	}
	for _, in := range b.play.inputs {
		if !b.subscribed(in.Topic) {
			return "nobody subscribed to " + in.Topic
		}
	}
	return ""
}

func (b *broker) subscribed(topic string) bool {
	for n := range b.queues {
		if n.topic == topic {
			return true
		}
	}
	return false
}

// most is how often a message is delivered at most.
func (b *broker) most() int {
	if b.play.hasFindings() {
		return known
	}
	return attempts
}

// hopeless describes a message that was refused too often, or returns "".
func (b *broker) hopeless() string {
	most := b.most()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.queues {
		for _, l := range q.waiting {
			if l.tries >= most {
				return fmt.Sprintf("%s was refused %d times", l.name, l.tries)
			}
		}
	}
	return ""
}

// confirm stores a published message and delivers it to the subscribers of its topic.
func (b *broker) confirm(topic string, msg *message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := msg.Copy()
	b.published = append(b.published, published{topic, kept})
	b.names[topic]++
	b.add(fmt.Sprintf("%s/%d", topic, b.names[topic]), topic, kept)
	b.change()
}

// copyTo gives a message that is being handled to the other process too. It waits until that
// process has answered or makes no progress.
func (pl *play) copyTo(owner string) {
	b, other := pl.broker, pl.follower()
	if other == nil {
		return
	}
	b.mu.Lock()
	if other.dead() || other.stopping.Load() {
		b.mu.Unlock()
		return
	}
	var given *letter
	for _, q := range b.queues {
		for l := range q.handed {
			if l.name == owner {
				given = &letter{name: owner, topic: l.topic, msg: l.msg, only: other}
				q.waiting = append(q.waiting, given)
				break
			}
		}
		if given != nil {
			break
		}
	}
	b.change()
	b.mu.Unlock()
	if given == nil {
		return
	}
	still := time.NewTimer(standstill)
	defer still.Stop()
	for calls := 0; ; {
		b.mu.Lock()
		done, changed := given.only == nil, b.changed
		b.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-still.C:
			before := calls
			if calls = pl.callsOf(owner + asCopy); calls == before {
				return // it waits for a lock of the first process
			}
			still.Reset(standstill)
		}
	}
}

// stored returns the name of the message that a queue delivers from this row.
func (b *broker) stored(row *stored.Message) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.sent[string(row.Topic)] {
		if l.msg.UUID == string(row.UUID) {
			return l.name + asStored
		}
	}
	return asStored
}

// callsOf counts the calls for a message.
func (pl *play) callsOf(owner string) (n int) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for at, calls := range pl.counts {
		if at.owner == owner {
			n += calls
		}
	}
	return n
}

// standstill is how long a call waits for something else to make progress.
const standstill = 30 * time.Millisecond
