package stored

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// LeaseNames is the prefix of the names under which consumers of leases are registered. No consumer
// of the inbox has such a name.
const LeaseNames = "\x00lease\x00"

// Name names an epoch of a consumer.
type Name struct {
	Name  string
	Epoch int
}

// Prefix returns the prefix of the consumer's keys in memory.
func (n Name) Prefix() string { return fmt.Sprintf("%s\x00%d\x00", n.Name, n.Epoch) }

// Consumer is a row of the consumers table.
type Consumer struct {
	ID        int32  `db:"id"`
	Namespace []byte `db:"namespace"`
	Name      []byte `db:"name"`
	Epoch     int    `db:"epoch"`
	KeySource []byte `db:"key_source"`
	Retention int64  `db:"retention"` // 0: for ever
	Window    int64  `db:"window_us"`
	PurgeLine int64  `db:"purge_line"`
	Paused    bool   `db:"paused"`
	CreatedAt int64  `db:"created_at"`
	PurgedAt  int64  `db:"purged_at"` // 0: never
	OnReplay  int    `db:"on_replay"`
	Served    bool   `db:"served"` // a queue in some process delivers its stored messages

	Charset string `db:"charset"` // of one that is found by its name: what is wrong with the connection's, see [database.Legible]
}

// Rows are the rows of one namespace.
type Rows struct {
	*database.DB
	Namespace string

	prepared sync.Map // by [Name]: the retention of the row at the first [Registered.Prepare], or noRow
}

// Consumer finds a consumer by its name. It returns [ErrNotFound] for a consumer that was never
// registered.
func (r *Rows) Consumer(ctx context.Context, name string, epoch int) (Consumer, error) {
	return r.ConsumerIn(ctx, r.Reader(ctx), name, epoch)
}

// ConsumerIn is [Rows.Consumer] on db.
func (r *Rows) ConsumerIn(ctx context.Context, db sqlx.QueryerContext, name string, epoch int) (row Consumer, err error) {
	err = sqlx.GetContext(ctx, db, &row, r.Dialect.SelectConsumer, []byte(r.Namespace), []byte(name), epoch)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("consumer %q, epoch %d: %w", name, epoch, ErrNotFound)
	}
	return row, database.Explain(err)
}

// Consumers lists the consumers of the namespace, without those of leases: all, or those with this
// name and epoch.
func (r *Rows) Consumers(ctx context.Context, name string, epoch *int) ([]Consumer, error) {
	if name != "" && epoch != nil {
		row, err := r.Consumer(ctx, name, *epoch)
		if errors.Is(err, ErrNotFound) {
			return nil, nil
		}
		return []Consumer{row}, err
	}
	all, err := r.Everyone(ctx, name, epoch)
	return slices.DeleteFunc(all, Consumer.IsOfLeases), err
}

// Everyone is [Rows.Consumers] with those of leases, whose names are registered with [LeaseNames] before them.
func (r *Rows) Everyone(ctx context.Context, name string, epoch *int) ([]Consumer, error) {
	var all []Consumer
	err := sqlx.SelectContext(ctx, r.Reader(ctx), &all, r.Dialect.SelectConsumers)
	return slices.DeleteFunc(all, func(c Consumer) bool {
		return string(c.Namespace) != r.Namespace || name != "" && c.Shown() != name || epoch != nil && c.Epoch != *epoch
	}), err
}

// Shown returns the name that the service gave the consumer, of the inbox or of leases.
func (c Consumer) Shown() string { return strings.TrimPrefix(string(c.Name), LeaseNames) }

// HasKeyOf reports whether c and other know messages by one key.
func (c Consumer) HasKeyOf(other Consumer) bool {
	return string(c.KeySource) == string(other.KeySource)
}

// IsOfLeases reports whether c is a consumer of leases.
func (c Consumer) IsOfLeases() bool { return strings.HasPrefix(string(c.Name), LeaseNames) }
