package inbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// registration is what the database knows of the consumer.
type registration struct {
	id         int32
	generation int64
}

// registerWait bounds the statements of a registration, for which others wait.
const registerWait = 10 * time.Second

// register returns the consumer's row, made on first use and asked for again after a
// connection was lost.
func (c *Consumer) register(ctx context.Context) (registration, error) {
	generation := c.store.generation.Load()
	if r := c.registered.Load(); r != nil && r.generation == generation {
		return *r, nil
	}
	c.registering.Lock()
	defer c.registering.Unlock()
	if r := c.registered.Load(); r != nil && r.generation == generation {
		return *r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, registerWait)
	defer cancel()
	row, err := c.findOrInsert(ctx)
	if err != nil {
		return registration{}, err
	}
	if err := c.sameKey(row); err != nil {
		return registration{}, err
	}
	c.formerIsOver(row)
	if row.Retention != c.retention() || row.Window != c.config.Window.Microseconds() || row.OnReplay != int(c.config.OnReplay) {
		err := c.store.db.Write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, c.store.dialect.UpdateConsumer,
				c.retention(), c.config.Window.Microseconds(), c.config.OnReplay, row.ID)
			return err
		})
		if err != nil {
			return registration{}, fmt.Errorf("record the settings: %w", err)
		}
	}
	r := registration{id: row.ID, generation: generation}
	c.registered.Store(&r)
	return r, nil
}

// sameKey refuses another key than the consumer had before.
func (c *Consumer) sameKey(row stored.Consumer) error {
	source, epoch := c.config.Key.source, c.config.Epoch
	switch {
	case string(row.KeySource) == source:
		return nil
	case c.heir != nil:
		return fmt.Errorf("%w: FormerKey is %s, and epoch %d has %s: give FormerKey that one",
			ErrKeyChanged, source, epoch, row.KeySource)
	}
	return fmt.Errorf("%w from %s to %s: what it has seen was recorded under the old key, "+
		"so set Epoch to %d to begin anew, with FormerKey to forget nothing, or put the old key back",
		ErrKeyChanged, row.KeySource, source, epoch+1)
}

// Verify returns what would make every message of the consumer that config names fail: a
// wrong setting, or another key than it had before. It registers nothing, and logs a Retention that is short
// for the Window.
func (s *Store) Verify(ctx context.Context, config ConsumerConfig) error {
	if err := config.Validate(); err != nil {
		return fmt.Errorf("inbox: consumer %q: %w", config.Name, err)
	}
	given := config
	config.setDefaults()
	s.declare(&config)
	c := &Consumer{store: s, config: config}
	for _, c := range []*Consumer{c, s.former(given, c)} {
		if err := c.verify(ctx); err != nil {
			return fmt.Errorf("inbox: consumer %q: %w", config.Name, database.Explain(err))
		}
	}
	return nil
}

// verify returns an error if the consumer had another key before.
func (c *Consumer) verify(ctx context.Context) error {
	if c == nil {
		return nil
	}
	_, err := c.known(ctx)
	return err
}

// known returns the consumer's row, or one without an ID, and an error if the consumer had another key before.
func (c *Consumer) known(ctx context.Context) (stored.Consumer, error) {
	row, err := c.find(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return stored.Consumer{}, nil
	}
	if err == nil {
		err = c.sameKey(row)
	}
	return row, err
}

// maxProbes bounds the search for a free id: each probe finds one taken with a chance of
// one in two thousand million.
const maxProbes = 8

func (c *Consumer) findOrInsert(ctx context.Context) (stored.Consumer, error) {
	s := c.store
	row, err := c.find(ctx)
	for probe := 0; errors.Is(err, sql.ErrNoRows) && probe < maxProbes; probe++ {
		err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, s.dialect.InsertConsumer,
				consumerID(s.config.Namespace, c.config.Name, c.config.Epoch, probe),
				[]byte(s.config.Namespace), []byte(c.config.Name), c.config.Epoch,
				[]byte(c.config.Key.source), c.retention(), c.config.Window.Microseconds(), c.config.OnReplay)
			return err
		})
		if err == nil {
			row, err = c.find(ctx)
		}
	}
	if err != nil {
		return row, fmt.Errorf("register the consumer: %w", err)
	}
	return row, nil
}

func (c *Consumer) find(ctx context.Context) (stored.Consumer, error) {
	var row stored.Consumer
	s := c.store
	err := sqlx.GetContext(ctx, s.db.Reader(ctx), &row, s.dialect.SelectConsumer,
		[]byte(s.config.Namespace), []byte(c.config.Name), c.config.Epoch)
	return row, err
}

// consumerID is a number made of what it stands for. A consumer whose row was lost, by a
// failover to a replica that lagged behind, gets the same one again, so a claim written
// under it in between can never count for another consumer.
func consumerID(namespace, name string, epoch, probe int) int32 {
	h := sha256.New()
	for _, part := range []string{namespace, name} {
		h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	h.Write(binary.AppendVarint(nil, int64(epoch)))
	h.Write(binary.AppendVarint(nil, int64(probe)))
	return max(int32(binary.BigEndian.Uint32(h.Sum(nil))&0x7fffffff), 1) //nolint:gosec // masked
}

// retention in microseconds as it is stored: 0 keeps for ever.
func (c *Consumer) retention() int64 {
	if c.config.Retention == Forever {
		return 0
	}
	return c.config.Retention.Microseconds()
}
