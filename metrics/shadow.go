package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// ShadowObserver counts the deliveries that package middleware/shadow watches. It is safe for
// concurrent use.
type ShadowObserver struct {
	consumers *children[*children[*children[prometheus.Counter]]] // by consumer, key and result
}

func newShadowObserver(r *registrar) *ShadowObserver {
	vector := r.counters("shadow", "deliveries_total",
		"Deliveries watched and not filtered, by key or version, and by what they are.", "consumer", "by", "result")
	most := r.config.MaxValues
	return &ShadowObserver{newChildren(0, func(consumer string) *children[*children[prometheus.Counter]] {
		return newChildren(most, func(by string) *children[prometheus.Counter] {
			return newChildren(mostReasons, func(result string) prometheus.Counter {
				return vector.WithLabelValues(consumer, by, result)
			})
		})
	})}
}

// ObserveShadow implements shadow.Observer.
func (o *ShadowObserver) ObserveShadow(_ context.Context, consumer, by, found string) {
	o.consumers.of(consumer).of(by).of(found).Inc()
}
