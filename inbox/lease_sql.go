package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Leases returns leases kept in the Store's tables, for handlers of the same service that have no
// transaction. It returns the same value each time. They report to the Store's logger and observers;
// [Store.Run] removes those that ended. A consumer of leases and a consumer of the inbox never see
// each other's messages, whatever their names. But their [ID] and [Step] go by the name: if a consumer
// moves from one to the other, no effect is repeated. Give two that exist side by side different names.
func (s *Store) Leases() *Leases {
	s.leasesOnce.Do(func() {
		s.leases = NewLeases(&sqlLeases{store: s}, LeasesConfig{Logger: s.log, Observers: s.config.Observers})
		s.leases.owner, s.leases.work = s, &s.work.deliveries
	})
	return s.leases
}

// sqlLeases is a [lease.Store] in the Store's tables. It measures time by the database's clock.
type sqlLeases struct {
	store     *Store
	consumers sync.Map // stored.Name to *stored.Registered
}

// leaseRow is the row of a key in the table of leases.
type leaseRow struct {
	Token     int64 `db:"token"` // 0: confirmed
	Remaining int64 `db:"remaining"`
}

func (q *sqlLeases) Acquire(ctx context.Context, key lease.Key, token int64, d time.Duration) (lease.State, error) {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	var row leaseRow
	err := q.write(ctx, key, func(ctx context.Context, tx *sqlx.Tx, consumer int32) error {
		say, id := q.store.dialect, []byte(key.ID)
		if _, err := tx.ExecContext(ctx, say.AcquireLease, consumer, id, token, d.Microseconds()); err != nil {
			return err
		}
		// The count of rows does not tell who has the key on MySQL with clientFoundRows.
		err := tx.GetContext(ctx, &row, say.SelectLease, consumer, id)
		if errors.Is(err, sql.ErrNoRows) { // released or purged in between
			row, err = leaseRow{Token: -1}, nil
		}
		return err
	})
	state := lease.State{Status: lease.Held, Remaining: time.Duration(row.Remaining) * time.Microsecond}
	switch {
	case err != nil:
		return lease.State{}, err
	case row.Token == token:
		state.Status = lease.Taken
	case row.Token == 0:
		state.Status = lease.Confirmed
	}
	return state, nil
}

func (q *sqlLeases) Confirm(ctx context.Context, key lease.Key, token int64, retention time.Duration) error {
	return q.hold(ctx, key, q.store.dialect.ConfirmLease, token, retention)
}

func (q *sqlLeases) Extend(ctx context.Context, key lease.Key, token int64, d time.Duration) error {
	return q.hold(ctx, key, q.store.dialect.ExtendLease, token, d)
}

func (q *sqlLeases) Release(ctx context.Context, key lease.Key, token int64) error {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	return q.write(ctx, key, func(ctx context.Context, tx *sqlx.Tx, consumer int32) error {
		_, err := tx.ExecContext(ctx, q.store.dialect.ReleaseLease, consumer, []byte(key.ID), token)
		return err
	})
}

// hold runs a statement that changes the row of key only if token holds it.
func (q *sqlLeases) hold(ctx context.Context, key lease.Key, statement string, token int64, d time.Duration) error {
	return q.write(ctx, key, func(ctx context.Context, tx *sqlx.Tx, consumer int32) error {
		n, err := database.Affected(tx.ExecContext(ctx, statement, d.Microseconds(), consumer, []byte(key.ID), token))
		if err == nil && n == 0 {
			return ErrLeaseLost
		}
		return err
	})
}

// write runs work in a short transaction: an autocommit statement whose context is cancelled could
// still be committed later. With one writer, a handler may have the turn: write waits for it until the deadline of ctx.
func (q *sqlLeases) write(ctx context.Context, key lease.Key,
	work func(ctx context.Context, tx *sqlx.Tx, consumer int32) error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, afterwards)
		defer cancel()
	}
	err := q.writeInTurn(ctx, key, work)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("leases: %w", database.Explain(err))
	}
	return err
}

func (q *sqlLeases) writeInTurn(ctx context.Context, key lease.Key,
	work func(ctx context.Context, tx *sqlx.Tx, consumer int32) error) error {
	reg, err := q.consumer(key).Row(ctx)
	if err != nil {
		return err
	}
	leave, err := q.store.db.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	return q.store.db.WriteInTurn(ctx, func(tx *sqlx.Tx) error { return work(ctx, tx, reg.ID) })
}

// consumer returns the registration of the consumer of key. Its row has no retention, so the janitor
// looks for no claims of it.
func (q *sqlLeases) consumer(key lease.Key) *stored.Registered {
	name := stored.Name{Name: stored.LeaseNames + key.Consumer, Epoch: key.Epoch}
	if c, ok := q.consumers.Load(name); ok {
		return c.(*stored.Registered)
	}
	c, _ := q.consumers.LoadOrStore(name, q.store.rows.Registered(stored.Self{Name: name, KeySource: key.Source}))
	return c.(*stored.Registered)
}
