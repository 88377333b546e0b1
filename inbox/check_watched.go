package inbox

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
)

// lookWatched notes, and logs once for each consumer, that nothing watches the backlog of a queue with StoreFirst.
func (s *Store) lookWatched(q QueueConfig) {
	if !q.StoreFirst || len(s.config.Observers) > 0 {
		return
	}
	s.mu.Lock()
	said := s.unwatched[q.Consumer]
	s.unwatched[q.Consumer] = true
	s.mu.Unlock()
	if !said {
		s.log.Info("inbox: nothing watches the backlog of a consumer; said once",
			watermill.LogFields{"consumer": q.Consumer, "reason": unwatched(q.Consumer).String()})
	}
}

// watched finds the queues of this process that nothing watches. It does not know what other processes observe.
func (c *inspection) watched() {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, consumer := range slices.Sorted(maps.Keys(s.unwatched)) {
		c.findings = append(c.findings, unwatched(consumer))
	}
}

func unwatched(consumer string) Finding {
	return Finding{
		Warning, fmt.Sprintf("consumer %q", consumer),
		"its Mode is StoreFirst, which acks a message before it is handled, and the Store has no Observers: " +
			"messages can pile up in the table while the broker's queue is empty, and nothing reports it",
		"put the Inbox() of a metrics.Builder, or an observer of your own, into Config.Observers, let the builder's WatchStore " +
			"report the backlog, and alert on its age (metrics/alerts.yml)",
	}
}
