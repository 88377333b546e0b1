package stored

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// ErrKeyChanged says that a consumer had another key before.
var ErrKeyChanged = errors.New("the consumer's key changed")

// Self is how a process describes its consumer.
type Self struct {
	Name
	KeySource string // empty if the caller does not know it, such as an operator's call
	Retention int64  // in microseconds, 0 for ever
	Window    int64  // in microseconds
	OnReplay  int
	Unsettled bool // Retention, Window and OnReplay are used only for a new row
	Former    bool // KeySource is a consumer's FormerKey, the key of the epoch before
}

// Registration identifies the row of a consumer.
type Registration struct {
	ID         int32
	Generation int64 // of the pool when the row was read
}

// Registered is a consumer whose row is inserted when it is needed. It is safe for concurrent use.
type Registered struct {
	// Met, unless it is nil, is called with the row each time it is read. Set it before the first
	// use.
	Met func(Consumer)

	rows *Rows
	self Self
	mu   sync.Mutex
	last atomic.Pointer[Registration]
}

// Registered returns the consumer that self describes. It does not call the database.
func (r *Rows) Registered(self Self) *Registered { return &Registered{rows: r, self: self} }

// registerWait limits the statements of a registration, because others wait for it.
const registerWait = 10 * time.Second

// Row returns the consumer's row. It inserts the row on first use and reads it again after a
// connection was lost, or in a handler's transaction until it was read outside of one. It returns [ErrKeyChanged] if the consumer had another key before.
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
	if _, live := g.rows.Live(ctx); !live { // else a rollback would take the row away, and leave its ID here
		g.last.Store(&r)
	}
	return r, nil
}

// Known returns the row of the consumer, or a row without an ID if there is none. It returns
// [ErrKeyChanged] if the consumer had another key before.
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

// Prepare is [Registered.Known], and records the retention of a known consumer if it is longer than before:
// a janitor must not delete by the shorter one until the first message comes.
func (g *Registered) Prepare(ctx context.Context) error {
	row, err := g.Known(ctx)
	if err != nil {
		return err
	}
	before := row.Retention
	if row.ID == 0 {
		before = noRow
	}
	g.rows.prepared.LoadOrStore(g.self.Name, before)
	if row.ID == 0 || !Longer(g.self.Retention, row.Retention) {
		return nil
	}
	below := g.self.Retention
	if below == 0 {
		below = math.MaxInt64
	}
	err = g.rows.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, g.rows.Dialect.RaiseRetention, g.self.Retention, row.ID, below)
		return err
	})
	if err != nil {
		return fmt.Errorf("record the longer retention: %w", err)
	}
	return nil
}

// noRow stands for the retention of a consumer that is not known yet.
const noRow int64 = -1

// Longer reports whether the stored retention a is longer than b.
func Longer(a, b int64) bool { return b != 0 && (a == 0 || a > b) }

// sameKey returns an error if the consumer had another key before.
func (g *Registered) sameKey(row Consumer) error {
	switch {
	case string(row.KeySource) == g.self.KeySource, g.self.KeySource == "":
		return nil
	case g.self.Former:
		return fmt.Errorf("%w: FormerKey is %s, and epoch %d has %s: give FormerKey that one",
			ErrKeyChanged, g.self.KeySource, g.self.Epoch, row.KeySource)
	}
	err := fmt.Errorf("%w from %s to %s, and epoch %d knows messages by the old one", ErrKeyChanged, row.KeySource, g.self.KeySource, g.self.Epoch)
	switch next := g.self.Epoch + 1; {
	case row.IsOfLeases():
		return fmt.Errorf("%w: put the old key back, or set Epoch to %d, which forgets them: what comes again is handled again", err, next)
	case g.self.Epoch == 0:
		return fmt.Errorf("%w: put the old key back, or set Epoch to %d, and FormerKey to the old key: without FormerKey, "+
			"what comes again is handled again", err, next)
	default:
		return fmt.Errorf("%w: put the old key back, or set Epoch to %d, and FormerKey to the old key, which finds what epoch %d handled: "+
			"what only an older epoch handled is handled again if it comes again", err, next, g.self.Epoch)
	}
}

// settle records the consumer's settings if the row has others. It leaves a longer retention in place that a
// process which started later may have recorded.
func (g *Registered) settle(ctx context.Context, row Consumer) error {
	s := g.self
	if Longer(row.Retention, s.Retention) && g.mayBeLater(row) {
		s.Retention = row.Retention
	}
	if s.Unsettled || row.Retention == s.Retention && row.Window == s.Window && row.OnReplay == s.OnReplay {
		return nil
	}
	return g.rows.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, g.rows.Dialect.UpdateConsumer, s.Retention, s.Window, s.OnReplay, row.ID)
		return err
	})
}

// mayBeLater reports whether the row may have got its retention since this process started: after a lost connection,
// or because it is not the one that Prepare saw.
func (g *Registered) mayBeLater(row Consumer) bool {
	before, prepared := g.rows.prepared.Load(g.self.Name)
	return g.last.Load() != nil || prepared && before != row.Retention
}

// maxProbes limits the search for a free id: an id is taken with a chance of one in two billion.
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
	if err == nil && len(row.KeySource) == 0 && s.KeySource != "" {
		row, err = g.setKey(ctx, row)
	}
	if err != nil {
		return row, fmt.Errorf("register the consumer: %w", err)
	}
	return row, nil
}

// setKey records the key of a consumer that an operator's call has registered. Another process may be first, with
// another key.
func (g *Registered) setKey(ctx context.Context, row Consumer) (Consumer, error) {
	err := g.rows.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, g.rows.Dialect.SetKeySource, []byte(g.self.KeySource), row.ID)
		return err
	})
	if err != nil {
		return row, err
	}
	return g.find(ctx)
}

func (g *Registered) find(ctx context.Context) (row Consumer, err error) {
	err = sqlx.GetContext(ctx, g.rows.Reader(ctx), &row, g.rows.Dialect.SelectConsumer,
		[]byte(g.rows.Namespace), []byte(g.self.Name.Name), g.self.Epoch)
	if err == nil { // before a key, which anybody may have sent, is an argument
		err = database.Legible(row.Charset)
	}
	return row, err
}

// consumerID derives a number from the consumer. If a failover to a lagging replica loses the
// consumer's row, the consumer gets the same number again, so a claim written under it in between
// never counts for another consumer.
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
