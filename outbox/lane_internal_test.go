package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

type confirming struct{}

func (confirming) Publish(string, ...*message.Message) error { return nil }
func (confirming) Close() error                              { return nil }

// publishing is a publisher made of its one method.
type publishing func(topic string, msgs ...*message.Message) error

func (f publishing) Publish(topic string, msgs ...*message.Message) error { return f(topic, msgs...) }
func (publishing) Close() error                                           { return nil }

var errRefused = errors.New("refused")

// publishRun has a lane publish letters.
func publishRun(to message.Publisher, burst int, letters []*letter) *run {
	r := &run{letters: letters}
	(&lane{outside: newOutside(watermill.NopLogger{}), to: to, may: func() bool { return true }, burst: burst}).publish(r)
	return r
}

// mail makes a letter whose UUID is its id.
func mail(id int64, key, topic string) *letter {
	msg := message.NewMessage(fmt.Sprint(id), nil)
	l := &letter{id: id, hash: hash(key), keyed: key != "", topic: topic, msg: msg}
	if !l.keyed {
		l.hash = hash(msg.UUID)
	}
	return l
}

// drawLetters makes letters as the numbers say, of few keys and topics, some of which
// failed before.
func drawLetters(draws []byte) []*letter {
	letters := make([]*letter, 0, len(draws))
	for i, d := range draws {
		l := mail(int64(i), []string{"", "a", "b", "c", "d"}[d%5], []string{"t", "u", "v"}[d/5%3])
		if d >= 200 {
			l.attempts = 1
		}
		letters = append(letters, l)
	}
	return letters
}

func FuzzWaves(f *testing.F) {
	f.Add([]byte{1, 1, 1, 1, 0, 2, 6, 6, 201, 1}, 3)
	f.Add([]byte{}, 1)
	f.Add([]byte{1, 201, 1, 1, 206, 206}, 10)
	f.Fuzz(func(t *testing.T, draws []byte, burst int) {
		if burst < 1 || len(draws) > 500 {
			return
		}
		letters := drawLetters(draws)
		l := &lane{burst: burst, run: &run{letters: letters}}
		checkWaves(t, l.waves(), letters, burst)
	})
}

// checkWaves is what a division into waves must satisfy.
func checkWaves(t *testing.T, waves [][]int, letters []*letter, burst int) {
	t.Helper()
	var all []int
	last := make(map[int64]int) // wave of the last letter of a key
	for w, wave := range waves {
		require.NotEmpty(t, wave)
		require.True(t, slices.IsSorted(wave), "within a wave the order of storing is kept")
		byKey := make(map[int64][]*letter)
		for _, i := range wave {
			l := letters[i]
			all = append(all, i)
			if l.keyed {
				byKey[l.hash] = append(byKey[l.hash], l)
			} else {
				require.Zero(t, w, "what has no order waits for nothing")
			}
		}
		for key, group := range byKey {
			require.LessOrEqual(t, len(group), burst)
			before, seen := last[key]
			require.True(t, !seen || before == w-1, "a key has no gap between its waves")
			last[key] = w
			for _, l := range group {
				require.Equal(t, group[0].topic, l.topic, "one call has one topic")
				require.True(t, len(group) == 1 || !l.suspect(), "what failed before is alone")
			}
		}
	}
	slices.Sort(all)
	for i := range letters {
		require.Equal(t, i, all[i])
	}
	require.Len(t, all, len(letters))
	for key := range last {
		checkKeyOrder(t, waves, letters, key)
	}
}

func checkKeyOrder(t *testing.T, waves [][]int, letters []*letter, key int64) {
	t.Helper()
	last := -1
	for _, wave := range waves {
		for _, i := range wave {
			if l := letters[i]; l.keyed && l.hash == key {
				require.Greater(t, i, last, "a wave has a letter before an earlier one of its key")
				last = i
			}
		}
	}
}

// moody is a publisher that fails at random and checks what it is given.
type moody struct {
	t         *testing.T
	rand      *rand.Rand
	burst     int
	letters   map[string]*letter
	place     map[string]int // among the letters of a key
	confirmed map[int64]int  // by key, how many
	sent      map[string]bool
}

func newMoody(t *testing.T, r *rand.Rand, letters []*letter) *moody {
	m := &moody{
		t: t, rand: r, burst: 1 + r.IntN(4), letters: make(map[string]*letter), place: make(map[string]int),
		confirmed: make(map[int64]int), sent: make(map[string]bool),
	}
	count := make(map[int64]int)
	for _, l := range letters {
		m.letters[l.msg.UUID] = l
		m.place[l.msg.UUID] = count[l.hash]
		count[l.hash]++
	}
	return m
}

func (m *moody) Publish(topic string, msgs ...*message.Message) error {
	errs, one := make([]error, len(msgs)), error(nil)
	given := make(map[int64]int)
	alone := true // each of its key
	for i, msg := range msgs {
		l := m.letters[msg.UUID]
		require.Equal(m.t, l.topic, topic)
		require.False(m.t, m.sent[msg.UUID], "confirmed, and given again in the same run")
		if l.keyed {
			require.Equal(m.t, m.confirmed[l.hash]+given[l.hash], m.place[msg.UUID], "an earlier one was not confirmed")
			given[l.hash]++
			alone = alone && given[l.hash] == 1
			require.LessOrEqual(m.t, given[l.hash], m.burst)
		}
		if m.rand.IntN(8) == 0 {
			errs[i] = []error{errRefused, Permanent(errRefused)}[m.rand.IntN(2)]
			one = errs[i]
		}
	}
	switch mood := m.rand.IntN(3); {
	case one == nil:
	case mood == 0:
		panic("moody")
	case mood == 1 && alone: // else it may send out of order, and that is KeyBurst's warning
		m.confirm(msgs, errs)
		return &PartialError{Errors: errs}
	default:
		return one
	}
	m.confirm(msgs, errs)
	return nil
}

func (*moody) Close() error { return nil }

func (m *moody) confirm(msgs []*message.Message, errs []error) {
	for i, msg := range msgs {
		if errs[i] == nil {
			m.sent[msg.UUID] = true
			m.confirmed[m.letters[msg.UUID].hash]++
		}
	}
}

// TestNothingOvertakes draws runs, failures, and moments in which nothing may be sent.
func TestNothingOvertakes(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
		draws := make([]byte, r.IntN(60))
		for i := range draws {
			draws[i] = byte(r.IntN(256))
		}
		letters := drawLetters(draws)
		m := newMoody(t, r, letters)
		run := &run{letters: letters}
		(&lane{outside: newOutside(watermill.NopLogger{}), to: m, burst: m.burst, may: func() bool { return r.IntN(10) > 0 }}).publish(run)
		for i, letter := range letters {
			require.Equal(t, m.sent[letter.msg.UUID], run.fates[i].sent(), "seed %d", seed)
		}
	}
}

func fateOf(r *run) (sent, failed, untried []int64) {
	for i, l := range r.letters {
		switch f := r.fates[i]; {
		case f.sent():
			sent = append(sent, l.id)
		case f.tried:
			failed = append(failed, l.id)
		default:
			untried = append(untried, l.id)
		}
	}
	return sent, failed, untried
}

func TestATopicThatIsGivenUpHoldsBackItsKeys(t *testing.T) {
	refusing := publishing(func(topic string, _ ...*message.Message) error {
		if topic == "dead" {
			return errRefused
		}
		return nil
	})
	var letters []*letter
	for i, key := range []string{"a", "b", "c", "d", "e"} {
		letters = append(letters, mail(int64(i), key, "dead"))
	}
	letters = append(letters, mail(5, "d", "alive"), mail(6, "f", "alive"))
	r := publishRun(refusing, 1, letters)
	sent, failed, untried := fateOf(r)
	assert.Equal(t, []int64{6}, sent)
	assert.Equal(t, []int64{0, 1, 2}, failed, "three in a row are enough")
	assert.Equal(t, []int64{3, 4, 5}, untried)
}

// TestOnePartOfAJoinedErrorIsNotTheAnswer: of two brokers that one call publishes to, the second
// may have nothing of what the first confirmed.
func TestOnePartOfAJoinedErrorIsNotTheAnswer(t *testing.T) {
	toTwo := publishing(func(_ string, msgs ...*message.Message) error {
		return errors.Join(&PartialError{Errors: make([]error, len(msgs))}, errRefused)
	})
	r := publishRun(toTwo, 1, []*letter{mail(0, "a", "t"), mail(1, "b", "t")})
	sent, failed, _ := fateOf(r)
	assert.Empty(t, sent)
	assert.Equal(t, []int64{0, 1}, failed)
}

// TestTheNeighboursOfAHopelessMessageHaveNotFailed: a publisher may keep from the broker the other messages of a call with one that
// it cannot send.
func TestTheNeighboursOfAHopelessMessageHaveNotFailed(t *testing.T) {
	hopeless := func(m *message.Message) bool { return m.UUID == "1" || m.UUID == "3" }
	to := publishing(func(_ string, msgs ...*message.Message) error {
		at := slices.IndexFunc(msgs, hopeless)
		if at < 0 {
			return nil
		}
		errs := make([]error, len(msgs))
		for i := range errs {
			errs[i] = errRefused
		}
		errs[at] = Permanent(errRefused)
		return &PartialError{Errors: errs}
	})
	for burst := range 3 {
		var letters []*letter
		for id, key := range []string{"a", "b", "", "c", "b", "a"} {
			letters = append(letters, mail(int64(id), key, "t"))
		}
		r := publishRun(to, 1+burst, letters)
		sent, failed, untried := fateOf(r)
		assert.Equal(t, []int64{0, 2, 5}, sent)
		assert.Equal(t, []int64{1, 3}, failed)
		assert.Equal(t, []int64{4}, untried, "it waits for the one before it")
	}
}

// TestAnErrorThatPanicsIsThatOfItsMessage: what was confirmed beside it is not sent again.
func TestAnErrorThatPanicsIsThatOfItsMessage(t *testing.T) {
	calls := 0
	to := publishing(func(string, ...*message.Message) error {
		calls++
		return fmt.Errorf("publish: %w", &PartialError{Errors: []error{nil, nil, (*faulty)(nil)}})
	})
	r := publishRun(to, 1, []*letter{mail(0, "a", "t"), mail(1, "b", "t"), mail(2, "c", "t")})
	sent, failed, _ := fateOf(r)
	assert.Equal(t, []int64{0, 1}, sent)
	assert.Equal(t, []int64{2}, failed)
	assert.Equal(t, 1, calls)
	assert.ErrorContains(t, r.fates[2].err, "panic")
}

// faulty is an error whose nil pointer somebody returned.
type faulty struct{ text string }

func (f *faulty) Error() string { return f.text }

func TestWhatFailedBeforeIsTriedAfterTheOthersAndAlone(t *testing.T) {
	var calls []string
	to := publishing(func(_ string, msgs ...*message.Message) error {
		call := ""
		for _, m := range msgs {
			call += m.UUID + " "
		}
		calls = append(calls, call)
		return nil
	})
	letters := []*letter{mail(0, "", "t"), mail(1, "k", "t"), mail(2, "k", "t"), mail(3, "", "t"), mail(4, "k", "t")}
	letters[0].attempts, letters[1].attempts = 1, 1
	publishRun(to, 10, letters)
	assert.Equal(t, []string{"3 ", "0 ", "1 ", "2 4 "}, calls)
}

func TestNothingGoesOutOnceTheLeaseWasOver(t *testing.T) {
	asked := 0
	may := func() bool { // over at the second call, and valid again
		asked++
		return asked != 2
	}
	r := &run{letters: []*letter{mail(0, "a", "t"), mail(1, "b", "u"), mail(2, "b", "u"), mail(3, "a", "t")}}
	(&lane{outside: newOutside(watermill.NopLogger{}), to: confirming{}, may: may, burst: 1}).publish(r)
	sent, failed, untried := fateOf(r)
	assert.Equal(t, []int64{0, 3}, sent)
	assert.Empty(t, failed)
	assert.Equal(t, []int64{1, 2}, untried)
}

// TestAPublisherThatDoesNotReturnIsLogged, once for each call: until it returns, nothing else tells of it.
func TestAPublisherThatDoesNotReturnIsLogged(t *testing.T) {
	log, called, goOn := watermill.NewCaptureLogger(), make(chan bool), make(chan bool)
	r := openTestRelay(t, oneLane(RelayConfig{Logger: log}))
	r.to = publishing(func(string, ...*message.Message) error {
		called <- true
		<-goOn
		return nil
	})
	p := newPumpOf(t, r)
	said := func() []watermill.CapturedMessage { return log.Captured()[watermill.ErrorLogLevel] }
	for calls := range 2 {
		p.inHand(mail(int64(2*calls+1), "", "t"), mail(int64(2*calls+2), "", "t"))
		p.dispatch()
		<-called
		p.sayOverdue(time.Now())
		require.Len(t, said(), calls, "it has only begun")
		for range 2 {
			p.sayOverdue(time.Now().Add(overdueAfter))
		}
		require.Len(t, said(), calls+1)
		fields := said()[calls].Fields
		require.Equal(t, []any{"t", fmt.Sprint(2*calls + 1), 2}, []any{fields["topic"], fields["message_uuid"], fields["count"]})
		goOn <- true
		p.settle(t.Context(), <-p.results)
		p.sayOverdue(time.Now().Add(overdueAfter))
		require.Len(t, said(), calls+1)
	}
}

func TestAPumpLooksForCallsThatDoNotReturn(t *testing.T) {
	log, goOn := watermill.NewCaptureLogger(), make(chan bool)
	r := newTestRelay(t, oneLane(RelayConfig{Logger: log}))
	var p *pump
	r.to = publishing(func(string, ...*message.Message) error {
		p.lanes[0].lane.calling.Store(&publishCall{began: time.Now().Add(-time.Hour)})
		<-goOn
		return nil
	})
	l := newLease()
	l.extend(time.Now(), time.Hour)
	p = newPump(r, l, false)
	p.shards = allShards
	p.joins(t)
	p.put(t, "k", dialect.OutboxPending, 1)
	p.inHand(mail(1, "k", "t"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.work(ctx, newKeeper(r), nil, nil) }()
	require.Eventually(t, func() bool { return log.HasError(errOverdue) }, time.Minute, 10*time.Millisecond)
	close(goOn)
	cancel()
	require.NoError(t, <-ended)
}
