package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/millrace/inbox"
)

// batches has the metrics of the batches of one consumer.
type batches struct {
	ends            *children[prometheus.Counter]
	messages, waits prometheus.Observer
}

// newBatches returns the metrics of each consumer that has batches: others have no series for them.
func newBatches(r *registrar) *children[*batches] {
	const in = "inbox"
	ends := r.counters(in, "batches_total", "Tries to handle several messages in one transaction, by result.", "consumer", "result")
	messages := r.histograms(in, "batch_messages", "Messages that gathered for one transaction.", prometheus.ExponentialBuckets(1, 2, 10), "consumer")
	waits := r.histograms(in, "batch_gathering_seconds", "Time from the receipt of the first message of a batch to its first transaction.",
		r.config.Buckets, "consumer")
	return newChildren(0, func(name string) *batches {
		b := &batches{
			ends:     newChildren(mostReasons, func(result string) prometheus.Counter { return ends.WithLabelValues(name, result) }),
			messages: messages.WithLabelValues(name), waits: waits.WithLabelValues(name),
		}
		for _, result := range []string{inbox.ReasonCommitted, inbox.ReasonHalved, inbox.ReasonNamed, inbox.ReasonAlone} {
			b.ends.of(result)
		}
		return b
	})
}

func (b *batches) observe(e inbox.Event) {
	b.ends.of(e.Reason).Inc()
	if e.Duration > 0 { // the first event of the batch
		b.messages.Observe(float64(e.Count))
		b.waits.Observe(e.Duration.Seconds())
	}
}
