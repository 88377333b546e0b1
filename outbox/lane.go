package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// run is what a lane is given to publish, in the order of their storing.
type run struct {
	lane    int
	letters []*letter
	probe   bool // it finds out whether an outage is over
	began   time.Time
	fates   []fate // of each letter
}

// fate is what became of a letter.
type fate struct {
	tried bool
	err   error
}

func (f fate) sent() bool { return f.tried && f.err == nil }

// errLeaseOver says that a lane stopped before a message.
var errLeaseOver = errors.New("the lease is over")

// lane publishes runs one after the other. It knows nothing of the database.
type lane struct {
	to    message.Publisher
	lease *lease
	burst int

	run     *run
	stopped map[int64]bool // keys of which a message failed or was passed over in this run
	tripped map[string]int // failures in a row, by topic
}

// tripAfter is how many failures in a row, tried one by one, end the trying of a topic.
const tripAfter = 3

// publish sends what it can of r. No message goes out before an earlier one of its key is
// confirmed, unless KeyBurst allows it.
func (l *lane) publish(r *run) {
	l.run, l.stopped, l.tripped = r, make(map[int64]bool), make(map[string]int)
	r.began = time.Now()
	r.fates = make([]fate, len(r.letters))
	for _, wave := range l.waves() {
		for _, group := range l.byTopic(wave) {
			l.send(group)
		}
	}
}

// waves divides the run so that no wave has more of one key than may go in one call.
func (l *lane) waves() [][]int {
	type place struct {
		wave, count int
		topic       string
	}
	places := make(map[int64]place)
	var waves [][]int
	for i, letter := range l.run.letters {
		at := 0
		if letter.keyed {
			p, seen := places[letter.hash]
			switch {
			case seen && p.topic == letter.topic && p.count < l.burst:
				p.count++
			case seen:
				p = place{p.wave + 1, 1, letter.topic}
			default:
				p = place{0, 1, letter.topic}
			}
			places[letter.hash], at = p, p.wave
		}
		if at == len(waves) {
			waves = append(waves, nil)
		}
		waves[at] = append(waves[at], i)
	}
	return waves
}

// byTopic groups a wave, without what must not or need not be tried any more. What failed
// before goes alone, so that it takes no other message down with it.
func (l *lane) byTopic(wave []int) [][]int {
	var groups [][]int
	index := make(map[string]int)
	for _, i := range wave {
		letter := l.run.letters[i]
		if !l.worthTrying(letter) {
			l.passOver(letter)
			continue
		}
		g, known := index[letter.topic]
		if !known || letter.suspect() {
			g = len(groups)
			groups = append(groups, nil)
		}
		if !letter.suspect() {
			index[letter.topic] = g
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}

func (l *lane) worthTrying(letter *letter) bool {
	return (!letter.keyed || !l.stopped[letter.hash]) && l.tripped[letter.topic] < tripAfter
}

// passOver leaves letter untried, and so those of its key behind it.
func (l *lane) passOver(letter *letter) {
	if letter.keyed {
		l.stopped[letter.hash] = true
	}
}

// send publishes the letters of one topic in one call, and after a failure that says no
// more than that, one by one.
func (l *lane) send(group []int) {
	err := l.call(group)
	var partial *PartialError
	switch {
	case err == nil:
		for _, i := range group {
			l.settle(i, nil)
		}
	case errors.Is(err, errLeaseOver):
		for _, i := range group {
			l.passOver(l.run.letters[i])
		}
	case errors.As(err, &partial) && len(partial.Errors) == len(group):
		for k, i := range group {
			l.settle(i, partial.Errors[k])
		}
	case len(group) == 1:
		l.settle(group[0], err)
	default:
		for _, i := range group {
			l.sendAlone(i)
		}
	}
}

func (l *lane) sendAlone(i int) {
	letter := l.run.letters[i]
	if l.worthTrying(letter) {
		if err := l.call([]int{i}); !errors.Is(err, errLeaseOver) {
			l.settle(i, err)
			return
		}
	}
	l.passOver(letter)
}

func (l *lane) settle(i int, err error) {
	letter := l.run.letters[i]
	l.run.fates[i] = fate{tried: true, err: err}
	if err == nil {
		l.tripped[letter.topic] = 0
		return
	}
	l.passOver(letter)
	if !errors.Is(err, ErrPermanent) {
		l.tripped[letter.topic]++
	}
}

// call hands letters of one topic to the publisher, if the lease still holds.
func (l *lane) call(group []int) (err error) {
	msgs := make([]*message.Message, 0, len(group))
	for _, i := range group {
		msgs = append(msgs, l.run.letters[i].msg)
	}
	if !l.lease.valid() {
		return errLeaseOver
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the publisher panicked: %v", v)
		}
	}()
	return l.to.Publish(l.run.letters[group[0]].topic, msgs...)
}
