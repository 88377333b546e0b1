package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"weak"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/owned"
)

// askFor bounds the questions about where messages are stored. They are asked for each pool until both are answered,
// at most once in each askEvery.
const (
	askFor   = 2 * time.Second
	askEvery = time.Minute
)

var errElsewhere = errors.New("a message is stored where its transaction is, and only a relay on that database sends it: " +
	"give the Publisher, the relay, and the Store or InTx the same database")

// whereabouts identifies the outbox in a database: one database always gives the same.
type whereabouts struct {
	database string
	made     int64 // when its tables were made; 0 if the service made them itself
}

// notElsewhere has the publisher find out, after the commit of a transaction on another pool than its own, whether that pool is on
// another database. Until the commit the transaction holds a connection, and a second one may not be had.
func (p *Publisher) notElsewhere(tx *ambient.Tx) {
	if tx.Pool() == p.db.DB.DB {
		return
	}
	again := p.asksAgain(tx.Pool())
	if time.Now().UnixNano() < again.Load() {
		return
	}
	tx.AfterCommit(&p.asked, func() {
		due, now := again.Load(), time.Now()
		if now.UnixNano() < due || owned.UsedUp(tx.Pool()) || owned.UsedUp(p.db.DB.DB) || !again.CompareAndSwap(due, now.Add(askEvery).UnixNano()) {
			return
		}
		p.afterCommit(func() {
			if p.warnElsewhere(tx.Pool()) {
				again.Store(math.MaxInt64)
			}
		})
	})
}

// asksAgain returns when to ask about pool, in nanoseconds.
func (p *Publisher) asksAgain(pool *sql.DB) *atomic.Int64 {
	key := weak.Make(pool)
	again, known := p.asked.Load(key)
	if !known {
		again, _ = p.asked.LoadOrStore(key, new(atomic.Int64))
	}
	return again.(*atomic.Int64) //nolint:forcetypeassert // it holds no others
}

// warnElsewhere logs that pool is certainly on another database than the publisher's. It reports whether it is known.
func (p *Publisher) warnElsewhere(pool *sql.DB) (known bool) {
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	there, err := p.whereabouts(ctx, pool)
	if err != nil {
		return false
	}
	here, err := p.whereabouts(ctx, p.db.DB.DB)
	if err == nil && here != there || dialect.Classify(err) == dialect.NoTable {
		p.config.Logger.Error("outbox: messages are stored in another database than that of the Publisher; said once per pool", errElsewhere, nil)
		return true
	}
	return err == nil
}

func (p *Publisher) whereabouts(ctx context.Context, pool *sql.DB) (w whereabouts, err error) {
	err = pool.QueryRowContext(ctx, p.sql.SelectWhereabouts).Scan(&w.database, &w.made)
	return w, err
}

// unlike adds to err, an error of a statement in tx, that tx is on a database of another kind than the publisher's.
func (p *Publisher) unlike(tx *ambient.Tx, err error) error {
	if tx == nil || tx.Pool() == p.db.DB.DB {
		return err
	}
	there, here := dialect.OfDriver(tx.Driver()), p.db.Dialect.Name
	if there == "" || there == here {
		return err
	}
	return fmt.Errorf("the transaction is on a database of the kind %s, and the Publisher on one of the kind %s: "+
		"give the Publisher the pool of the transaction: %w", there, here, err)
}
