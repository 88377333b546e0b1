package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/millrace/outbox"
)

// outboxCollector has the gauges of the outbox's tables.
type outboxCollector struct {
	*figures
	publisher *outbox.Publisher

	messages, pending, unowned, relays *prometheus.Desc
}

func newOutboxCollector(b *Builder, publisher *outbox.Publisher) *outboxCollector {
	const out = "outbox"
	c := &outboxCollector{figures: newFigures(&b.config, out), publisher: publisher}
	c.messages = c.desc(out, "messages", "Messages that are not sent, by state, counted up to a limit.", "state")
	c.pending = c.desc(out, "oldest_pending_age_seconds", "Age of the oldest message that is to be sent.")
	c.unowned = c.desc(out, "unowned_shards", "Shards that no living relay has.")
	c.relays = c.desc(out, "relays", "Relays that have a lease.")
	c.look = c.lookAt
	return c
}

func (c *outboxCollector) lookAt(ctx context.Context) ([]prometheus.Metric, error) {
	b, err := c.publisher.Backlog(ctx, outbox.BacklogOptions{CountTo: c.config.CountTo})
	if err != nil {
		return nil, err
	}
	layout, err := c.publisher.Shards(ctx)
	if err != nil {
		return nil, err
	}
	alive := 0
	for _, r := range layout.Relays {
		if r.Alive {
			alive++
		}
	}
	return []prometheus.Metric{
		gauge(c.messages, float64(b.Pending.N), "pending"), gauge(c.messages, float64(b.Retrying.N), "retrying"),
		gauge(c.messages, float64(b.Held.N), "held"), gauge(c.messages, float64(b.Parked.N), "parked"),
		gauge(c.pending, b.OldestPending.Seconds()), gauge(c.unowned, float64(layout.Unowned())), gauge(c.relays, float64(alive)),
	}, nil
}
