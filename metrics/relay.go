package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/millrace/outbox"
)

// relayObserver counts the events of relays.
type relayObserver struct {
	topics *children[*topic]

	outages       prometheus.Counter
	out           prometheus.Gauge
	shards        prometheus.Gauge
	purged        prometheus.Counter
	purgeFailures prometheus.Counter
	purgedAt      prometheus.Gauge
}

// topic has the metrics of one topic.
type topic struct {
	published, attempts, parked prometheus.Counter

	latency, batch prometheus.Observer
}

func newRelayObserver(r *registrar) *relayObserver {
	const out = "outbox"
	published := r.counters(out, "published_total", "Messages that the broker confirmed.", "topic")
	attempts := r.counters(out, "failed_attempts_total", "Messages that failed and are to be tried again.", "topic")
	parked := r.counters(out, "parked_total", "Messages parked for an operator.", "topic")
	latency := r.histograms(out, "latency_seconds", "Time from the storing of the oldest message of a call to the broker's confirmation.",
		r.config.Buckets, "topic")
	batch := r.histograms(out, "batch_messages", "Messages of one topic confirmed together.",
		prometheus.ExponentialBuckets(1, 2, 10), "topic")
	return &relayObserver{
		topics: newChildren(r.config.MaxValues, func(name string) *topic {
			return &topic{
				published: published.WithLabelValues(name), attempts: attempts.WithLabelValues(name),
				parked:  parked.WithLabelValues(name),
				latency: latency.WithLabelValues(name), batch: batch.WithLabelValues(name),
			}
		}),
		outages:       r.counter(out, "outages_total", "Probes that found that nothing gets through to the broker."),
		out:           r.gauge(out, "broker_out", "1 while nothing gets through to the broker."),
		shards:        r.gauge(out, "owned_shards", "Shards that the relay of this process owns."),
		purged:        r.counter(out, "purged_messages_total", "Sent messages deleted after their retention."),
		purgeFailures: r.counter(out, "purge_failures_total", "Deletions of sent messages that failed."),
		purgedAt:      r.gauge(out, "purge_last_success_timestamp_seconds", "When sent messages were last looked through without a failure."),
	}
}

// Observe counts e.
func (o *relayObserver) Observe(_ context.Context, e outbox.Event) {
	switch e.Kind {
	case outbox.KindPublished:
		t := o.topics.of(e.Topic)
		t.published.Add(float64(e.Count))
		t.batch.Observe(float64(e.Count))
		t.latency.Observe(e.Latency.Seconds())
	case outbox.KindAttempt:
		o.topics.of(e.Topic).attempts.Inc()
	case outbox.KindParked:
		o.topics.of(e.Topic).parked.Inc()
	case outbox.KindOutage:
		o.observeOutage(e)
	case outbox.KindShards:
		o.shards.Set(float64(e.Count))
	case outbox.KindPurged:
		o.observePurged(e)
	}
}

func (o *relayObserver) observeOutage(e outbox.Event) {
	if e.Err == nil { // the outage is over
		o.out.Set(0)
		return
	}
	o.outages.Inc()
	o.out.Set(1)
}

func (o *relayObserver) observePurged(e outbox.Event) {
	o.purged.Add(float64(e.Count))
	if e.Err != nil {
		o.purgeFailures.Inc()
		return
	}
	o.purgedAt.SetToCurrentTime()
}
