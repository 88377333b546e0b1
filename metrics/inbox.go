package metrics

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/millrace/inbox"
)

// inboxObserver counts the events of the inbox.
type inboxObserver struct {
	vectors   inboxVectors
	consumers *children[*consumer]
	batches   *children[*batches]

	evicted       prometheus.Counter
	purged        prometheus.Counter
	purgeFailures prometheus.Counter
	purgedAt      prometheus.Gauge
}

// inboxVectors are labelled by consumer, some also by a second label.
type inboxVectors struct {
	received, completed, held, released, collisions, tooOld, stale, gaps, reclaimed, forgotten, ended, doubled, settled,
	contentions, outages *prometheus.CounterVec

	claims, failures, duplicates, parked, retries, replayed, types *prometheus.CounterVec

	ages         *prometheus.GaugeVec
	seconds, lag *prometheus.HistogramVec
}

// consumer has the metrics of one consumer.
type consumer struct {
	received, completed, held, released, collisions, tooOld, stale, gaps, reclaimed, forgotten, ended, doubled, settled,
	contentions, outages prometheus.Counter

	claims, failures, duplicates, parked, retries, replayed *children[prometheus.Counter]

	types        *children[*eventType]
	ages         *children[*aged]
	seconds, lag prometheus.Observer
}

// aged adds up the claims of one age over the epochs of a consumer. The janitor counts those of each epoch at another time.
type aged struct {
	gauge prometheus.Gauge
	mu    sync.Mutex
	of    map[int]int // by epoch
}

func (a *aged) set(epoch, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[epoch] = n
	sum := 0
	for _, n := range a.of {
		sum += n
	}
	a.gauge.Set(float64(sum))
}

// eventType counts one event type of a consumer. It is a metric of its own because a series that
// begins with its first event shows no increase, so alerts need series without types.
type eventType struct{ received, completed, failed, parked, replayed prometheus.Counter }

// lagBuckets reach from a message that is handled at once to one that waited for a day.
var lagBuckets = []float64{.005, .025, .1, .5, 2.5, 10, 60, 300, 1800, 7200, 28800, 86400}

// Results of a delivery, besides the reasons of package inbox.
const (
	resultCompleted = "completed"
	resultFailed    = "failed"
	resultDuplicate = "duplicate"
	resultOutcome   = "outcome"
	resultStale     = "stale"
	resultHeld      = "held"
	resultParked    = "parked"

	resultRan        = "ran"
	resultForced     = "ran although refused"
	resultSuppressed = "suppressed"
	resultRefused    = "refused"
)

func newInboxObserver(r *registrar) *inboxObserver {
	const in = "inbox"
	of := func(name, help string, more ...string) *prometheus.CounterVec {
		return r.counters(in, name, help, append([]string{"consumer"}, more...)...)
	}
	o := &inboxObserver{
		vectors: inboxVectors{
			received:    of("received_total", "Deliveries that a consumer took up."),
			completed:   of("completed_total", "Handler runs whose transaction was committed."),
			held:        of("held_total", "Messages stored until their predecessor is applied."),
			released:    of("released_total", "Messages released because their predecessor was applied."),
			collisions:  of("collisions_total", "Messages with the key but not the payload of another one."),
			tooOld:      of("too_old_total", "Messages parked because they may have been handled and forgotten."),
			stale:       of("stale_versions_total", "Messages with a version that their aggregate has passed."),
			gaps:        of("gaps_total", "Arrivals of a message before its predecessor was applied, unless that was done while it waited in memory."),
			reclaimed:   of("reclaimed_leases_total", "Stored messages taken over after another process's lease ended."),
			forgotten:   of("forgotten_transactions_total", "Successful runs that did not use their transaction."),
			ended:       of("ended_transactions_total", "Handlers that ended the inbox's transaction themselves."),
			doubled:     of("double_effects_total", "Successful runs without a transaction that may have run twice."),
			settled:     of("settled_outcomes_total", "Outcomes known to be published."),
			contentions: of("contentions_total", "Deadlocks and lock waits that the inbox retried."),
			outages:     of("outages_total", "Deliveries that found the database down."),
			claims:      of("claims_total", "Deliveries by result.", "result"),
			failures:    of("failures_total", "Handler runs that were rolled back, by reason.", "reason"),
			duplicates:  of("duplicates_total", "Copies acked without running the handler, by event type.", "event_type"),
			parked:      of("parked_total", "Messages stored for an operator, by reason.", "reason"),
			retries:     of("retries_total", "Stored messages that are to be tried again, by reason.", "reason"),
			replayed:    of("replayed_total", "Replayed messages by result.", "result"),
			types:       of("event_types_total", "Events by the type of their message.", "event_type", "event"),
			ages:        r.gauges(in, "aged_claims", "Completed claims by age, as the janitor saw them last.", "consumer", "age"),
			seconds: r.histograms(in, "processing_seconds", "Time from the claim of a message to its commit or rollback.",
				r.config.Buckets, "consumer"),
			lag: r.histograms(in, "lag_seconds", "Time from the receipt of a message to the commit of its handler, waits between attempts included.",
				lagBuckets, "consumer"),
		},
		evicted:       r.counter(in, "evicted_keys_total", "Keys forgotten too early because the memory for them is full."),
		purged:        r.counter(in, "purged_claims_total", "Claims deleted after their retention."),
		purgeFailures: r.counter(in, "purge_failures_total", "Runs of the janitor that failed."),
		purgedAt:      r.gauge(in, "purge_last_success_timestamp_seconds", "When the janitor last ran without a failure."),
	}
	o.batches = newBatches(r)
	o.consumers = newChildren(0, func(name string) *consumer { return o.vectors.of(name, r.config.MaxValues) })
	return o
}

// of returns the metrics of a consumer. Series that alerts use begin with 0, so that the first
// event is an increase.
func (v *inboxVectors) of(name string, limit int) *consumer {
	by := func(vec *prometheus.CounterVec, values ...string) *children[prometheus.Counter] {
		c := newChildren(mostReasons, func(value string) prometheus.Counter { return vec.WithLabelValues(name, value) })
		for _, value := range values {
			c.of(value)
		}
		return c
	}
	one := func(vec *prometheus.CounterVec) prometheus.Counter { return vec.WithLabelValues(name) }
	return &consumer{
		received: one(v.received), completed: one(v.completed), held: one(v.held), released: one(v.released),
		collisions: one(v.collisions), tooOld: one(v.tooOld), stale: one(v.stale), gaps: one(v.gaps),
		reclaimed: one(v.reclaimed), forgotten: one(v.forgotten), ended: one(v.ended), doubled: one(v.doubled),
		settled: one(v.settled), contentions: one(v.contentions), outages: one(v.outages),
		claims: by(v.claims, resultCompleted, resultFailed, resultDuplicate, resultOutcome, resultStale, resultHeld, resultParked),
		parked: by(v.parked, inbox.ReasonCollision, inbox.ReasonTooOld, inbox.ReasonAttempts, inbox.ReasonTerminal,
			inbox.ReasonUnknownType, inbox.ReasonNoAnswer, inbox.ReasonVersion, inbox.ReasonHeldTooLong, inbox.ReasonReplayed,
			inbox.ReasonNoKey),
		failures: by(v.failures, inbox.ReasonCollision), retries: by(v.retries),
		replayed:   by(v.replayed, resultRan, resultForced, resultSuppressed, resultRefused, resultDuplicate),
		duplicates: newChildren(limit, func(kind string) prometheus.Counter { return v.duplicates.WithLabelValues(name, kind) }),
		ages: newChildren(mostReasons, func(age string) *aged {
			return &aged{gauge: v.ages.WithLabelValues(name, age), of: map[int]int{}}
		}),
		seconds: v.seconds.WithLabelValues(name), lag: v.lag.WithLabelValues(name),
		types: newChildren(limit, func(kind string) *eventType {
			one := func(event string) prometheus.Counter { return v.types.WithLabelValues(name, kind, event) }
			return &eventType{one("received"), one("completed"), one("failed"), one("parked"), one("replayed")}
		}),
	}
}

// Observe counts e.
func (o *inboxObserver) Observe(ctx context.Context, e inbox.Event) {
	switch e.Kind {
	case inbox.KindEvicted:
		o.evicted.Add(float64(e.Count))
	case inbox.KindPurged:
		o.observePurged(e)
	case inbox.KindBatch:
		o.batches.of(e.Consumer).observe(e)
	default:
		o.consumers.of(e.Consumer).observe(ctx, e)
	}
}

func (o *inboxObserver) observePurged(e inbox.Event) {
	o.purged.Add(float64(e.Count))
	if e.Err != nil {
		o.purgeFailures.Inc()
		return
	}
	o.purgedAt.SetToCurrentTime()
}

// observe counts an event of the consumer.
func (c *consumer) observe(ctx context.Context, e inbox.Event) {
	switch e.Kind {
	case inbox.KindReceived:
		c.received.Inc()
		c.types.of(e.Type).received.Inc()
	case inbox.KindCompleted:
		c.observeCompleted(ctx, e)
	case inbox.KindFailed:
		c.observeFailed(e)
	case inbox.KindDuplicate:
		c.observeDuplicate(e)
	case inbox.KindCollision:
		c.collisions.Inc()
	case inbox.KindParked:
		c.observeParked(e)
	case inbox.KindStale:
		c.stale.Inc()
		c.claims.of(resultStale).Inc()
	case inbox.KindHeld:
		c.held.Inc()
		c.claims.of(resultHeld).Inc()
	case inbox.KindReleased:
		c.released.Add(float64(e.Count))
	case inbox.KindGap:
		c.gaps.Inc()
	case inbox.KindRetried:
		c.retries.of(e.Reason).Inc()
	case inbox.KindReclaimed:
		c.reclaimed.Add(float64(e.Count))
	case inbox.KindForgottenTx:
		c.forgotten.Inc()
	case inbox.KindEndedTx:
		c.ended.Inc()
	case inbox.KindDoubleEffect:
		c.doubled.Inc()
	case inbox.KindSettled:
		c.settled.Inc()
	case inbox.KindContention:
		c.contentions.Inc()
	case inbox.KindOutage:
		c.outages.Inc()
	case inbox.KindReplayed:
		c.observeReplayed(e)
	case inbox.KindClaims:
		c.ages.of(e.Reason).set(e.Epoch, e.Count)
	}
}

func (c *consumer) observeCompleted(ctx context.Context, e inbox.Event) {
	c.completed.Inc()
	c.types.of(e.Type).completed.Inc()
	c.claims.of(resultCompleted).Inc()
	c.seconds.Observe(e.Duration.Seconds())
	lag := e.Duration
	if received := inbox.ReceivedAt(ctx); !received.IsZero() {
		lag = max(lag, time.Since(received)) // the database's clock may be ahead
	}
	c.lag.Observe(lag.Seconds())
}

func (c *consumer) observeFailed(e inbox.Event) {
	c.failures.of(e.Reason).Inc()
	c.types.of(e.Type).failed.Inc()
	c.claims.of(resultFailed).Inc()
	if e.Duration > 0 { // otherwise no handler ran
		c.seconds.Observe(e.Duration.Seconds())
	}
}

func (c *consumer) observeDuplicate(e inbox.Event) {
	c.duplicates.of(e.Type).Inc()
	if e.Reason == inbox.ReasonOutcome {
		c.claims.of(resultOutcome).Inc()
		return
	}
	c.claims.of(resultDuplicate).Inc()
}

func (c *consumer) observeParked(e inbox.Event) {
	c.parked.of(e.Reason).Inc()
	c.types.of(e.Type).parked.Inc()
	switch e.Reason {
	case inbox.ReasonTooOld:
		c.tooOld.Inc()
		c.claims.of(resultParked).Inc()
	case inbox.ReasonCollision, inbox.ReasonVersion, inbox.ReasonGap, inbox.ReasonTooManyHeld,
		inbox.ReasonReplayed, inbox.ReasonNoKey:
		c.claims.of(resultParked).Inc() // the others were parked after a failed run
	}
}

// observeReplayed counts a replayed message by its reason: ran, suppressed, refused or duplicate.
// The number of suppressed messages may follow the reason.
func (c *consumer) observeReplayed(e inbox.Event) {
	result := e.Reason
	if strings.HasPrefix(result, resultSuppressed) {
		result = resultSuppressed
	}
	c.replayed.of(result).Inc()
	c.types.of(e.Type).replayed.Inc()
}
