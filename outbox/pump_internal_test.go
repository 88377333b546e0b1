package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// newTestPump returns a pump that owns everything, and does nothing by itself. Its
// database is empty.
func newTestPump(t *testing.T, config RelayConfig) *pump {
	t.Helper()
	return newPumpOf(t, openTestRelay(t, config))
}

func newPumpOf(t *testing.T, r *Relay) *pump {
	t.Helper()
	l := newLease()
	l.extend(time.Now(), time.Hour)
	p := newPump(r, l, false)
	t.Cleanup(func() {
		for i := range p.lanes {
			close(p.lanes[i].runs)
		}
	})
	p.assigned, p.shards = true, allShards
	p.reader.most = 2 * p.config.Batch // as after messages that were small
	return p
}

// inHand puts letters before their lanes.
func (p *pump) inHand(letters ...*letter) {
	for _, l := range letters {
		p.take(l, time.Now())
	}
}

// away makes a run of the letters in hand, as if it was on its way.
func (p *pump) away(lane int) *run {
	r := &run{lane: lane, letters: p.pick(&p.lanes[lane]), began: time.Now()}
	r.fates = make([]fate, len(r.letters))
	p.lanes[lane].busy, p.lanes[lane].run = true, r
	return r
}

func (r *run) fate(id int64, err error) {
	for i, l := range r.letters {
		if l.id == id {
			r.fates[i] = fate{tried: true, err: failureOf(err)}
		}
	}
}

func ids(letters []*letter) []int64 {
	all := make([]int64, 0, len(letters))
	for _, l := range letters {
		all = append(all, l.id)
	}
	return all
}

func oneLane(c RelayConfig) RelayConfig {
	c.Lanes = 1
	return c
}

// A head may be set aside only if no earlier message of its key is in hand.
func TestNoMessageIsSetAsideBehindAnEarlierOne(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.inHand(mail(1, "k", "alive"))
	r := p.away(0)
	p.trouble["dead"] = trouble{until: time.Now().Add(time.Hour), err: errRefused}
	p.inHand(mail(2, "k", "dead"), mail(3, "k", "alive"), mail(4, "", "dead"))
	p.siftAll()
	assert.Equal(t, []int64{2, 3}, ids(p.lanes[0].queue), "the first may still fail")
	assert.Empty(t, p.blocked)
	require.Len(t, p.ledger.postpone, 1)
	assert.Equal(t, []dialect.Row{{ID: 4}}, p.ledger.postpone[0].letters)

	p.lastConfirm = time.Now()
	r.fate(1, errRefused)
	p.settle(t.Context(), r)
	assert.Equal(t, int64(1), p.blocked[hash("k")].head)
	assert.Equal(t, []int64{2, 3}, ids(p.ledger.hold))
	assert.Empty(t, p.lanes[0].queue)
}

// The same where the run that fails is what shows that the topic is in trouble.
func TestATopicThatGetsIntoTroubleKeepsItsHeads(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.inHand(mail(1, "k", "dead"), mail(2, "", "dead"), mail(3, "", "dead"), mail(4, "", "alive"))
	r := p.away(0)
	p.inHand(mail(5, "k", "dead"), mail(6, "j", "dead"))
	for id := range int64(3) {
		r.fate(id+1, errRefused)
	}
	r.fate(4, nil)
	p.settle(t.Context(), r)
	assert.Equal(t, int64(1), p.blocked[hash("k")].head)
	assert.Equal(t, int64(6), p.blocked[hash("j")].head)
	assert.Equal(t, []int64{5}, ids(p.ledger.hold))
	assert.Empty(t, p.lanes[0].queue)
}

func TestATopicInTroubleIsSoInEveryLane(t *testing.T) {
	p := newTestPump(t, RelayConfig{Lanes: 2})
	for id := range int64(30) {
		p.inHand(mail(id+1, "", "dead"))
	}
	r := p.away(0)
	for i := range r.letters {
		r.fates[i] = fate{tried: true, err: failureOf(errRefused)}
	}
	require.NotEmpty(t, p.lanes[1].queue)
	p.lastConfirm = time.Now()
	p.settle(t.Context(), r)
	assert.Empty(t, p.lanes[1].queue)
}

// Messages that fail again and again must not keep their topic in trouble for the others.
func TestWhatFailedBeforeIsNoTroubleForItsTopic(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	for id := range int64(3) {
		l := mail(id+1, "", "t")
		p.suspect[l.id] = time.Now().Add(-time.Minute)
		p.inHand(l)
	}
	p.inHand(mail(4, "", "other"))
	r := p.away(0)
	for id := range int64(3) {
		r.fate(id+1, errRefused)
	}
	r.fate(4, nil)
	p.inHand(mail(5, "", "t"))
	late := mail(6, "", "t")
	p.suspect[6] = time.Now()
	p.inHand(late)
	p.settle(t.Context(), r)
	assert.Equal(t, []int64{5}, ids(p.lanes[0].queue), "those that failed wait, the others do not")
}

// alarms in the past make the pump spin.
func TestThePumpRestsWhileItCanDoNothing(t *testing.T) {
	for name, prepare := range map[string]func(p *pump){
		"before the first shards": func(p *pump) {
			p.assigned, p.shards = false, 0
		},
		"without shards":             func(p *pump) { p.shards = 0 },
		"while a look runs":          func(p *pump) { p.reader.busy = true },
		"while it stops":             func(p *pump) { p.closing.Store(true) },
		"when it has done its batch": func(p *pump) { p.once, p.reader.exhausted = true, true },
		"with full hands": func(p *pump) {
			for id := range int64(2 * p.config.Batch) {
				p.window[id+1] = mail(id+1, "", "t")
			}
		},
		"while the database cannot be read": func(p *pump) { p.readFailed(time.Now(), &reading{err: errRefused}) },
		"with full hands, and a database that could not be read": func(p *pump) {
			p.readFailed(time.Now(), &reading{err: errRefused})
			p.reader.lookAt = time.Now()
			for id := range int64(2 * p.config.Batch) {
				p.window[id+1] = mail(id+1, "", "t")
			}
		},
		"while a probe is on its way": func(p *pump) {
			p.reader.busy = true
			p.outage = brokerOutage{on: true, probing: true}
			p.lanes[0].queue = []*letter{mail(1, "", "t")}
		},
		"in an outage with nothing to probe": func(p *pump) {
			p.reader.busy = true
			p.outage = brokerOutage{on: true}
		},
		"in an outage without a lease": func(p *pump) {
			p.reader.busy = true
			p.outage = brokerOutage{on: true}
			p.lanes[0].queue = []*letter{mail(1, "", "t")}
			p.lease.end()
		},
		"while a ledger is written again": func(p *pump) {
			p.reader.busy = true
			p.flusher = flusher{busy: true, failures: 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPump(t, oneLane(RelayConfig{}))
			prepare(p)
			assert.Greater(t, time.Until(p.nextAlarm()), 20*time.Millisecond)
		})
	}
}

// A ledger that is not written when a relay ends is sent again by the next.
func TestABatchInAnOutageEndsOnceItsLedgerIsWritten(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.once, p.outage.on, p.reader.exhausted = true, true, true
	require.True(t, p.finished())
	p.ledger.sent = []dialect.Row{{ID: 1}}
	assert.False(t, p.finished())
	p.ledger, p.flusher.busy = newLedger(2), true
	assert.False(t, p.finished())
	p.flusher.busy, p.flusher.failed = false, &flush{}
	assert.False(t, p.finished())
	p.flusher.failed, p.lanes[0].busy = nil, true
	assert.False(t, p.finished())
}

// It would go on when Run has returned, on a pool that is closed then.
func TestAPumpThatStopsEndsItsLook(t *testing.T) {
	r := newTestRelay(t, oneLane(RelayConfig{Drain: time.Hour}))
	r.db.SetMaxOpenConns(1)
	conn, err := r.db.Conn(t.Context())
	require.NoError(t, err)
	p := newPump(r, newLease(), false)
	p.assigned, p.shards = true, allShards
	p.read(t.Context())
	require.True(t, p.reader.busy)
	p.end()
	assert.False(t, p.reader.busy)
	require.NoError(t, conn.Close())
}

// A process that stood still is told to stop in the same moment, or soon after it.
func TestALeaseThatIsLostAtTheEnd(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	shares := make(chan int, 2)
	r := newTestRelay(t, oneLane(RelayConfig{Observers: []Observer{On(func(_ context.Context, e Event) {
		if e.Count == 0 { // between the loss and the end of Run
			end()
		}
		shares <- e.Count
	}, KindShards)}}))
	result := make(chan error, 1)
	go func() { result <- r.Run(ended) }()
	require.Positive(t, <-shares)
	_, err := r.db.ExecContext(t.Context(), `DELETE FROM millrace_outbox_relays`)
	require.NoError(t, err)
	require.NoError(t, <-result, "nothing was on its way")
	require.Zero(t, <-shares)

	ctx, cancel := context.WithCancel(t.Context())
	late, taken := make(chan error), make(chan bool)
	r.to = publishing(func(string, ...*message.Message) error {
		cancel()
		<-taken
		return nil
	})
	go func() {
		<-ctx.Done()
		late <- errLeaseLost
		close(taken)
	}()
	p := newPump(r, newLease(), false)
	p.lease.extend(time.Now(), time.Hour)
	p.shards = allShards
	p.inHand(mail(1, "", "t"))
	err = p.work(ctx, newKeeper(r), late, nil)
	require.ErrorIs(t, err, errLeaseLost)
	require.ErrorIs(t, err, errCutOff, "nobody recorded what was sent")
}

func TestAPumpThatStopsSendsNothingMore(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	require.True(t, p.maySend())
	p.close()
	assert.False(t, p.maySend())
	p.closing.Store(false)
	p.lease.end()
	assert.False(t, p.maySend())
}
