package stored

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
)

// ErrKeyChanged says that a consumer was run with another key before.
var ErrKeyChanged = errors.New("the consumer's key changed")

// Self is what a consumer says of itself.
type Self struct {
	Name
	KeySource string
	Retention int64 // in microseconds, 0 for ever
	Window    int64 // in microseconds
	OnReplay  int
	Unsettled bool // Retention, Window and OnReplay are no more than what a new row begins with
	Former    bool // KeySource is what a consumer's FormerKey says of the epoch before
}

// Registration is what the database knows of a consumer.
type Registration struct {
	ID         int32
	Generation int64 // of the connections, when it was read
}

// Registered is a consumer that gets a row when one is needed. It is safe for concurrent use.
type Registered struct {
	// Met is told of the row each time it was read; nil for nobody. It is set before the first use.
	Met func(Consumer)

	rows *Rows
	self Self
	mu   sync.Mutex
	last atomic.Pointer[Registration]
}

// Registered returns the consumer that self describes. It asks the database nothing.
func (r *Rows) Registered(self Self) *Registered { return &Registered{rows: r, self: self} }

// registerWait bounds the statements of a registration, for which others wait.
const registerWait = 10 * time.Second

// Row returns the consumer's row, made on first use and asked for again after a connection was
// lost. A consumer that had another key before is [ErrKeyChanged].
func (g *Registered) Row(ctx context.Context) (Registration, error) {
	generation := g.rows.Generation()
	if r := g.last.Load(); r != nil && r.Generation == generation {
		return *r, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.last.Load(); r != nil && r.Generation == generation {
		return *r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, registerWait)
	defer cancel()
	row, err := g.findOrInsert(ctx)
	if err == nil {
		err = g.sameKey(row)
	}
	if err != nil {
		return Registration{}, err
	}
	if g.Met != nil {
		g.Met(row)
	}
	if err := g.settle(ctx, row); err != nil {
		return Registration{}, fmt.Errorf("record the settings: %w", err)
	}
	r := Registration{row.ID, generation}
	g.last.Store(&r)
	return r, nil
}

// Known returns the row of the consumer, or one without an ID where there is none. A consumer that had
// another key before is [ErrKeyChanged].
func (g *Registered) Known(ctx context.Context) (Consumer, error) {
	row, err := g.find(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return Consumer{}, nil
	}
	if err == nil {
		err = g.sameKey(row)
	}
	return row, err
}

// sameKey refuses another key than the consumer had before.
func (g *Registered) sameKey(row Consumer) error {
	switch {
	case string(row.KeySource) == g.self.KeySource:
		return nil
	case g.self.Former:
		return fmt.Errorf("%w: FormerKey is %s, and epoch %d has %s: give FormerKey that one",
			ErrKeyChanged, g.self.KeySource, g.self.Epoch, row.KeySource)
	}
	return fmt.Errorf("%w from %s to %s: what it has seen was recorded under the old key, "+
		"so set Epoch to %d to begin anew, with FormerKey to forget nothing, or put the old key back",
		ErrKeyChanged, row.KeySource, g.self.KeySource, g.self.Epoch+1)
}

// settle records the consumer's settings where the row has others.
func (g *Registered) settle(ctx context.Context, row Consumer) error {
	s := g.self
	if s.Unsettled || row.Retention == s.Retention && row.Window == s.Window && row.OnReplay == s.OnReplay {
		return nil
	}
	return g.rows.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, g.rows.Dialect.UpdateConsumer, s.Retention, s.Window, s.OnReplay, row.ID)
		return err
	})
}

// maxProbes bounds the search for a free id: each probe finds one taken with a chance of
// one in two thousand million.
const maxProbes = 8

func (g *Registered) findOrInsert(ctx context.Context) (Consumer, error) {
	s := g.self
	row, err := g.find(ctx)
	for probe := 0; errors.Is(err, sql.ErrNoRows) && probe < maxProbes; probe++ {
		err = g.rows.Write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, g.rows.Dialect.InsertConsumer,
				consumerID(g.rows.Namespace, s.Name, probe), []byte(g.rows.Namespace), []byte(s.Name.Name), s.Epoch,
				[]byte(s.KeySource), s.Retention, s.Window, s.OnReplay)
			return err
		})
		if err == nil {
			row, err = g.find(ctx)
		}
	}
	if err != nil {
		return row, fmt.Errorf("register the consumer: %w", err)
	}
	return row, nil
}

func (g *Registered) find(ctx context.Context) (row Consumer, err error) {
	err = sqlx.GetContext(ctx, g.rows.Reader(ctx), &row, g.rows.Dialect.SelectConsumer,
		[]byte(g.rows.Namespace), []byte(g.self.Name.Name), g.self.Epoch)
	return row, err
}

// consumerID is a number made of what it stands for. A consumer whose row was lost, by a
// failover to a replica that lagged behind, gets the same one again, so a claim written
// under it in between can never count for another consumer.
func consumerID(namespace string, of Name, probe int) int32 {
	h := sha256.New()
	for _, part := range []string{namespace, of.Name} {
		h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	h.Write(binary.AppendVarint(nil, int64(of.Epoch)))
	h.Write(binary.AppendVarint(nil, int64(probe)))
	return max(int32(binary.BigEndian.Uint32(h.Sum(nil))&0x7fffffff), 1) //nolint:gosec // masked
}
