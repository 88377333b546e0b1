package outbox

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/sole"
)

// run is the letters that a lane is to publish, in the order in which they were stored.
type run struct {
	lane    int
	letters []*letter
	probe   bool // it finds out whether an outage is over
	began   time.Time
	fates   []fate // one for each letter
}

// fate is the result of publishing a letter.
type fate struct {
	tried bool
	err   *failure
}

func (f fate) sent() bool { return f.tried && f.err == nil }

// lane publishes runs one after the other. It knows nothing of the database.
type lane struct {
	*outside
	to    message.Publisher
	may   func() bool // reports whether the lane may send
	burst int

	calling atomic.Pointer[publishCall] // nil between calls

	run     *run
	stopped map[int64]bool // keys of which a message failed or was passed over in this run
	tripped map[string]int // failures in a row, by topic
}

// tripAfter is after how many failures in a row a lane gives up on a topic for this run.
const tripAfter = 3

// publish sends what it can of r. No message goes out before an earlier one of its key is
// confirmed, unless KeyBurst allows it.
func (l *lane) publish(r *run) {
	l.run, l.stopped, l.tripped = r, make(map[int64]bool), make(map[string]int)
	r.began = time.Now()
	r.fates = make([]fate, len(r.letters))
	for _, wave := range l.waves() {
		for _, group := range l.calls(wave) {
			if group = l.worthTrying(group); len(group) > 0 {
				l.send(group)
			}
		}
	}
}

// waves divides the run so that no wave has more messages of a key than one call may have. A
// suspect shares its wave with no other message of its key.
func (l *lane) waves() [][]int {
	type place struct {
		wave, count int
		topic       string
		alone       bool
	}
	places := make(map[int64]place)
	var waves [][]int
	for i, letter := range l.run.letters {
		at := 0
		if letter.keyed {
			p, seen := places[letter.hash]
			switch {
			case seen && p.topic == letter.topic && p.count < l.burst && !p.alone && !letter.suspect():
				p.count++
			case seen:
				p = place{p.wave + 1, 1, letter.topic, letter.suspect()}
			default:
				p = place{0, 1, letter.topic, letter.suspect()}
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

// calls groups a wave by topic. Suspects go alone and last, so that one takes no other message
// down with it, and its failure does not condemn the topic before other messages were tried.
func (l *lane) calls(wave []int) [][]int {
	var groups, alone [][]int
	index := make(map[string]int)
	for _, i := range wave {
		letter := l.run.letters[i]
		if letter.suspect() {
			alone = append(alone, []int{i})
			continue
		}
		g, known := index[letter.topic]
		if !known {
			g = len(groups)
			index[letter.topic] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	return append(groups, alone...)
}

// worthTrying returns the letters of a group that are still worth trying, and passes over the
// others.
func (l *lane) worthTrying(group []int) []int {
	worth := make([]int, 0, len(group))
	for _, i := range group {
		letter := l.run.letters[i]
		if letter.keyed && l.stopped[letter.hash] || l.tripped[letter.topic] >= tripAfter {
			l.passOver(letter)
			continue
		}
		worth = append(worth, i)
	}
	return worth
}

// passOver leaves letter unsent, and so the later ones of its key.
func (l *lane) passOver(letter *letter) {
	if letter.keyed {
		l.stopped[letter.hash] = true
	}
}

// send publishes the letters of one topic in one call. After a failure that does not say which
// of them it is about, it publishes them one by one.
func (l *lane) send(group []int) {
	switch v := l.call(group); {
	case v.notNow:
		for _, i := range group {
			l.passOver(l.run.letters[i])
		}
	case len(v.each) == len(group):
		l.settleEach(group, v.each)
	case v.err == nil, len(group) == 1:
		for _, i := range group {
			l.settle(i, v.err)
		}
	default:
		for _, i := range group {
			if one := l.worthTrying([]int{i}); len(one) > 0 {
				l.send(one)
			}
		}
	}
}

// settleEach settles the letters of a call that tells them apart. Where it can never send one of them,
// the publisher may have kept the others from the broker for its sake: those that failed are tried
// again without it.
func (l *lane) settleEach(group []int, each []*failure) {
	hopeless := slices.ContainsFunc(each, func(f *failure) bool { return f != nil && f.permanent })
	var again []int
	for k, i := range group {
		if f := each[k]; hopeless && f != nil && !f.permanent {
			again = append(again, i)
			continue
		}
		l.settle(i, each[k])
	}
	if again = l.worthTrying(again); len(again) > 0 {
		l.send(again)
	}
}

func (l *lane) settle(i int, err *failure) {
	letter := l.run.letters[i]
	if err == nil {
		l.run.fates[i] = fate{tried: true}
		l.tripped[letter.topic] = 0
		return
	}
	l.run.fates[i] = fate{tried: true, err: err}
	l.passOver(letter)
	if !err.permanent {
		l.tripped[letter.topic]++
	}
}

// verdict is the result of a call.
type verdict struct {
	notNow bool // the lease has ended, or the relay was told to stop
	err    *failure
	each   []*failure // one for each message, where the publisher told them apart
}

// call passes letters of one topic to the publisher, if the lane may still send.
func (l *lane) call(group []int) (v verdict) {
	first := l.run.letters[group[0]]
	switch {
	case !l.may():
		return verdict{notNow: true}
	case first.broken != nil: // suspects go alone
		return verdict{err: failureOf(first.broken)}
	}
	msgs := make([]*message.Message, 0, len(group))
	for _, i := range group {
		msgs = append(msgs, l.run.letters[i].copy())
	}
	l.calling.Store(&publishCall{topic: first.topic, uuid: first.msg.UUID, count: len(msgs), began: time.Now()})
	defer l.calling.Store(nil)
	var answer error
	var partial *PartialError
	err := l.await("the publisher", func() error {
		answer = l.to.Publish(first.topic, msgs...)
		partial, _ = sole.As[*PartialError](answer)
		return nil
	})
	switch {
	case err != nil: // the publisher panicked, or its error did
		return verdict{err: failureOf(err)}
	case partial == nil || len(partial.Errors) != len(msgs):
		return verdict{err: l.failure(answer)}
	}
	for _, one := range partial.Errors {
		v.each = append(v.each, l.failure(one))
	}
	return v
}

// failure is [failureOf] for an error whose methods may panic.
func (l *lane) failure(err error) (f *failure) {
	if err == nil {
		return nil
	}
	if err := l.await("the publisher's error", func() error { f = failureOf(err); return nil }); err != nil {
		f = failureOf(err)
	}
	return f
}

// failure is an error whose methods were called once, where a panic does no harm: they may
// panic, such as those of a nil pointer that a publisher returned as an error.
type failure struct {
	error
	text      string
	permanent bool
}

func (f *failure) Error() string { return f.text }

// Unwrap lets observers find what the publisher returned.
func (f *failure) Unwrap() error { return f.error }

func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	return &failure{err, err.Error(), errors.Is(err, ErrPermanent)}
}
