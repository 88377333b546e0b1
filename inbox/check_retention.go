package inbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/stored"
)

// remembering is how long a consumer remembers a message, and how long a copy may still come.
type remembering struct {
	epoch             int
	retention, window int64 // in microseconds
}

func (c *ConsumerConfig) remembering() remembering {
	return remembering{c.Epoch, c.retention(), c.Window.Microseconds()}
}

// short returns a finding and true if the retention is too short for the window.
func (r remembering) short(consumer string) (Finding, bool) {
	if r.retention == 0 || r.retention >= 2*r.window {
		return Finding{}, false
	}
	window, retention := time.Duration(r.window)*time.Microsecond, time.Duration(r.retention)*time.Microsecond
	return Finding{
		Warning, fmt.Sprintf("consumer %q", consumer),
		fmt.Sprintf("Retention %v is below twice its Window of %v: a message may be redelivered after it is forgotten, "+
			"and is then handled again or parked as too old", retention, window),
		fmt.Sprintf("set Retention to %v or more, or inbox.Forever", 2*window),
	}, true
}

// declare notes the retention that this process gives a consumer, and logs at once if it is too short: the
// table still has that of an earlier process.
func (s *Store) declare(config *ConsumerConfig) {
	r := config.remembering()
	s.mu.Lock()
	known, found := s.declared[config.Name]
	if !found || known.epoch <= r.epoch {
		s.declared[config.Name] = r
	}
	s.mu.Unlock()
	if found && known == r {
		return
	}
	if f, short := r.short(config.Name); short {
		s.log.Info("inbox: messages can be redelivered after they are forgotten", watermill.LogFields{"reason": f.String()})
	}
}

// governing returns the retention by which this process deletes the claims of c: the longer of those that the
// table and this process have. Before the consumer's first message the table may have that of an earlier process.
func (s *Store) governing(c stored.Consumer) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, found := s.declared[string(c.Name)]; found && r.epoch == c.Epoch && stored.Longer(r.retention, c.Retention) {
		return r.retention
	}
	return c.Retention
}

// consumers compares each consumer's retention with its window, and finds queues that nothing watches. The
// settings of this process count, else those that an earlier process recorded, of the newest epoch only.
func (c *inspection) consumers(ctx context.Context) error {
	if c.failed() {
		return nil
	}
	s := c.store
	var rows []stored.Consumer
	if err := s.db.SelectContext(ctx, &rows, s.dialect.SelectConsumers); err != nil {
		return fmt.Errorf("read the consumers: %w", err)
	}
	all := make(map[string]remembering)
	for _, row := range rows {
		known, found := all[string(row.Name)]
		if string(row.Namespace) == s.config.Namespace && (!found || known.epoch <= row.Epoch) {
			all[string(row.Name)] = remembering{row.Epoch, row.Retention, row.Window}
		}
	}
	s.mu.Lock()
	maps.Copy(all, s.declared)
	s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if f, short := all[name].short(name); short {
			c.findings = append(c.findings, f)
		}
	}
	c.watched()
	return nil
}
