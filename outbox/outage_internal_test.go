package outbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// outageOf has everything before the lanes refused.
func outageOf(t *testing.T, p *pump) {
	t.Helper()
	for lane := range p.lanes {
		r := p.away(lane)
		for i := range r.letters {
			r.fates[i] = fate{tried: true, err: failureOf(errRefused)}
		}
		p.settle(t.Context(), r)
	}
	require.True(t, p.outage.on)
}

// probeNow starts the next probe at once and returns what is on its way.
func probeNow(t *testing.T, p *pump) *run {
	t.Helper()
	p.outage.probeAt = time.Now()
	p.dispatch()
	require.True(t, p.outage.probing)
	r := <-p.results // what the lane found is not what the test says
	r.fates[0] = fate{}
	return r
}

// probeFails has the next probe refused, and returns the id of its message.
func probeFails(t *testing.T, p *pump) int64 {
	t.Helper()
	r := probeNow(t, p)
	r.fates[0] = fate{tried: true, err: failureOf(errRefused)}
	p.settle(t.Context(), r)
	return r.letters[0].id
}

func TestAnOutageEndsForAllMessagesAndNotOnlyForTheFirst(t *testing.T) {
	p := newTestPump(t, RelayConfig{Lanes: 2})
	p.inHand(mail(1, "", "t"))
	outageOf(t, p)
	p.inHand(mail(2, "", "t"), mail(3, "", "t"), mail(4, "", "t"))
	probed := make(map[int64]int)
	for range 8 {
		probed[probeFails(t, p)]++
	}
	assert.Equal(t, map[int64]int{1: 2, 2: 2, 3: 2, 4: 2}, probed, "the one that failed the longest ago")
}

func TestAProbeThatTellsNothingMakesRoomForTheNext(t *testing.T) {
	for name, f := range map[string]fate{
		"refused for its own sake": {tried: true, err: failureOf(Permanent(errRefused))},
		"not tried":                {},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPump(t, oneLane(RelayConfig{}))
			p.inHand(mail(1, "", "t"), mail(2, "", "t"))
			outageOf(t, p)
			r := probeNow(t, p)
			r.fates[0] = f
			p.settle(t.Context(), r)
			assert.True(t, p.outage.on)
			assert.False(t, p.outage.probing)
		})
	}
}

func TestAnOutageSpendsNoAttemptOfWhatFailedBefore(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	suspect := mail(1, "", "t")
	suspect.failedAt = time.Now().Add(-time.Minute)
	p.lastConfirm = time.Now().Add(-time.Second)
	p.inHand(mail(2, "", "t"))
	outageOf(t, p)
	p.suspect[1] = suspect.failedAt
	p.inHand(suspect)
	for range 4 {
		probeFails(t, p)
	}
	assert.Empty(t, p.ledger.aside)
	assert.Zero(t, suspect.attempts)
}

// What the table keeps, anybody sees who looks for why a message is late.
func TestTheTableKeepsNoPasswords(t *testing.T) {
	said := errors.New(`parse "amqp://shop:p4ss%zz@mq/v": invalid`)
	const kept = `parse "amqp:[hidden]@mq/v": invalid`
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.park(t.Context(), mail(1, "", "t"), said)
	assert.Equal(t, kept, p.ledger.aside[0].Error)
	p.postpone([]*letter{mail(2, "", "t")}, time.Minute, said)
	assert.Equal(t, kept, p.ledger.postpone[0].reason)
}

// What began before an outage may be confirmed after its beginning: that ends nothing.
func TestAnOutageIsNotEndedByWhatBeganBefore(t *testing.T) {
	p := newTestPump(t, RelayConfig{Lanes: 2})
	before := &run{lane: 1, letters: []*letter{mail(9, "", "u")}, fates: []fate{{tried: true}}, began: time.Now()}
	p.inHand(mail(1, "", "t"), mail(2, "", "t"))
	outageOf(t, p)
	p.settle(t.Context(), before)
	assert.True(t, p.outage.on)
	r := probeNow(t, p)
	r.fates[0] = fate{tried: true}
	p.settle(t.Context(), r)
	assert.False(t, p.outage.on)
}

func TestAnOutageEndsForAllTopicsAndNotOnlyForTheFirst(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.inHand(mail(1, "", "t"), mail(2, "", "t"))
	outageOf(t, p)
	p.inHand(mail(3, "", "u"), mail(4, "k", "u"), mail(5, "k", "v"))
	var probed []int64
	for range 6 {
		probed = append(probed, probeFails(t, p))
	}
	assert.Equal(t, []int64{3, 1, 4, 2, 3, 1}, probed, "topics and messages take turns; the fifth waits for its key")
}

func TestAnOutagePassesOverMoreWithEachProbe(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{Batch: 1, MinBackoff: time.Hour, MaxBackoff: time.Hour}))
	id := int64(0)
	refill := func() {
		for len(p.window) < 2 {
			id++
			p.inHand(mail(id, "", "dead"))
		}
	}
	refill()
	outageOf(t, p)
	var passed []int
	for range 7 {
		refill()
		probeFails(t, p)
		for more := true; more; { // what was postponed leaves room for what is read next
			before := len(p.ledger.letters())
			for _, id := range p.ledger.letters() {
				delete(p.window, id)
			}
			refill()
			p.siftAll()
			more = len(p.ledger.letters()) > before
		}
		passed = append(passed, len(p.ledger.letters()))
		p.ledger = newLedger(p.ledger.number + 1)
	}
	assert.Equal(t, []int{0, 8, 16, 32, 64, 128, 128}, passed)
	p.trouble["other"] = trouble{until: time.Now().Add(time.Hour), passes: 1}
	p.trouble["ill"] = trouble{until: time.Now().Add(time.Hour)}
	p.endOutage(t.Context())
	assert.NotContains(t, p.trouble, "other", "what is read now may go out")
	assert.Contains(t, p.trouble, "ill")
}

// A window of large messages is a few of them.
func TestAnOutagePassesOverAsManyWindowsOfLargeMessages(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	for id := range int64(16) {
		l := mail(id+1, "", "dead")
		l.bytes = 4 << 20
		p.inHand(l)
	}
	outageOf(t, p)
	for range 2 {
		probeFails(t, p)
	}
	assert.Equal(t, 4*16, p.outage.passes)
}

// A batch must not end because of the first message that fails.
func TestABatchInAnOutageAsksForEveryTopicWithoutPause(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.once = true
	p.inHand(mail(1, "", "t"))
	outageOf(t, p)
	p.inHand(mail(2, "", "t"), mail(3, "", "t"), mail(4, "", "t"), mail(5, "", "u"), mail(6, "k", "u"), mail(7, "k", "u"))
	assert.False(t, p.finished())
	p.reader.exhausted = true
	assert.False(t, p.finished())
	var probed []int64
	for p.dispatch(); p.outage.probing; p.dispatch() {
		r := <-p.results
		probed = append(probed, r.letters[0].id)
		r.fates[0] = fate{tried: true, err: failureOf(errRefused)}
		p.settle(t.Context(), r)
	}
	assert.Equal(t, []int64{5, 2, 6, 3}, probed, "three failures of a topic are enough, and one of a message")
	assert.True(t, p.finished())
	p.reader.exhausted = false
	assert.False(t, p.finished(), "there may be a message of another topic")
}

// heldOf stores n held messages, each of a key of its own, with keys up to the last.
func heldOf(t *testing.T, r *Relay, topic string, last, n int64) {
	t.Helper()
	_, err := r.db.ExecContext(t.Context(), `
		WITH RECURSIVE held (key) AS (SELECT ? UNION ALL SELECT key + 1 FROM held WHERE key < ?)
		INSERT INTO millrace_outbox (key_hash, blocked_key, status, created_at, topic, uuid, order_key)
		SELECT key, key, ?, 1, ?, key, key FROM held`, last-n+1, last, dialect.OutboxHeld, topic)
	require.NoError(t, err)
}

// A relay that died left them behind. The room that looks for keys may take is full before the window is.
func TestABatchInAnOutageEndsBeforeItHasSeenAllKeys(t *testing.T) {
	r := newTestRelay(t, oneLane(RelayConfig{}))
	r.to = publishing(func(string, ...*message.Message) error { return errRefused })
	heldOf(t, r, "t", 2500, 2500)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := r.RelayBatch(ctx)
	require.NoError(t, ctx.Err(), "RelayBatch did not return")
	assert.ErrorIs(t, err, errRefused)
}

func TestAnOutagePassesOverManyKeys(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 100})
	heldOf(t, p.Relay, "dead", 2000, 1000)
	heldOf(t, p.Relay, "alive", 3000, 1)
	p.looks(t)
	outageOf(t, p)
	for probes := 0; ; probes++ {
		require.Less(t, probes, 20, "the topic that works is never read")
		probeFails(t, p)
		for p.flush(t.Context()); p.flusher.busy; p.flush(t.Context()) {
			p.flushed(<-p.flusher.done)
			p.looks(t)
		}
		for _, l := range p.window {
			if l.topic == "alive" {
				return
			}
		}
		p.reader.sweepAt = time.Time{}
		p.looks(t)
	}
}
