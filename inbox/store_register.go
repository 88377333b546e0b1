package inbox

import (
	"context"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// self returns how this process describes the consumer.
func (c *ConsumerConfig) self() stored.Self {
	return stored.Self{
		Name: stored.Name{Name: c.Name, Epoch: c.Epoch}, KeySource: c.Key.source,
		Retention: c.retention(), Window: c.Window.Microseconds(), OnReplay: int(c.OnReplay),
	}
}

// selfAsFormer is self for the epoch before.
func (c *ConsumerConfig) selfAsFormer() stored.Self {
	self := c.self()
	self.Former = true
	return self
}

// retention returns the retention as it is stored: in microseconds, 0 for ever.
func (c *ConsumerConfig) retention() int64 {
	if c.Retention == Forever {
		return 0
	}
	return c.Retention.Microseconds()
}

// register returns the consumer's row. It inserts the row on first use, and reads it again after a
// connection was lost.
func (c *claimConsumer) register(ctx context.Context) (stored.Registration, error) {
	return c.row.Row(ctx)
}

// Verify returns the error with which every message of the consumer that config names would fail: a
// wrong setting, or another key than the consumer had before. It registers nothing, logs a Retention
// that is short for the Window, and records one that is longer than before.
func (s *Store) Verify(ctx context.Context, config ConsumerConfig) error {
	if err := config.Validate(); err != nil {
		return fmt.Errorf("inbox: consumer %q: %w", config.Name, err)
	}
	given := config
	config.setDefaults()
	s.declare(&config)
	err := s.rows.Registered(config.self()).Prepare(ctx)
	if former, is := given.former(); is && err == nil {
		err = s.rows.Registered(former.selfAsFormer()).Prepare(ctx)
	}
	if err != nil {
		return fmt.Errorf("inbox: consumer %q: %w", config.Name, database.Explain(err))
	}
	return nil
}
