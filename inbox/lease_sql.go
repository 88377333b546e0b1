package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Leases returns leases kept in the Store's tables, for handlers of the same service that
// have no transaction: the same value each time. They report to the Store's logger and
// observers, and [Store.Run] removes those that ended. A consumer of leases and a consumer
// of the inbox never see each other's messages, whatever their names.
func (s *Store) Leases() *Leases {
	s.leasesOnce.Do(func() {
		s.leases = NewLeases(&sqlLeases{store: s}, LeasesConfig{Logger: s.log, Observers: s.config.Observers})
		s.leases.owner = s
	})
	return s.leases
}

// sqlLeases is a [LeaseStore]. A lease lasts by the database's clock.
type sqlLeases struct {
	store     *Store
	consumers sync.Map // consumerName to *Consumer
}

// leaseRow is what the table of leases says of a key.
type leaseRow struct {
	Token     int64 `db:"token"` // 0: confirmed
	Remaining int64 `db:"remaining"`
}

func (q *sqlLeases) Acquire(ctx context.Context, key LeaseKey, token int64, lease time.Duration) (LeaseState, error) {
	var row leaseRow
	err := q.write(ctx, key, func(ctx context.Context, tx *sqlx.Tx, consumer int32) error {
		d, id := q.store.dialect, []byte(key.ID)
		if _, err := tx.ExecContext(ctx, d.AcquireLease, consumer, id, token, lease.Microseconds()); err != nil {
			return err
		}
		// Asked, since the count of rows does not tell on MySQL with clientFoundRows.
		err := tx.GetContext(ctx, &row, d.SelectLease, consumer, id)
		if errors.Is(err, sql.ErrNoRows) { // released or purged in between
			row, err = leaseRow{Token: -1}, nil
		}
		return err
	})
	state := LeaseState{Status: LeaseHeld, Remaining: time.Duration(row.Remaining) * time.Microsecond}
	switch {
	case err != nil:
		return LeaseState{}, err
	case row.Token == token:
		state.Status = LeaseTaken
	case row.Token == 0:
		state.Status = LeaseConfirmed
	}
	return state, nil
}

func (q *sqlLeases) Confirm(ctx context.Context, key LeaseKey, token int64, retention time.Duration) error {
	return q.hold(ctx, key, q.store.dialect.ConfirmLease, token, retention)
}

func (q *sqlLeases) Extend(ctx context.Context, key LeaseKey, token int64, lease time.Duration) error {
	return q.hold(ctx, key, q.store.dialect.ExtendLease, token, lease)
}

func (q *sqlLeases) Release(ctx context.Context, key LeaseKey, token int64) error {
	return q.write(ctx, key, func(ctx context.Context, tx *sqlx.Tx, consumer int32) error {
		_, err := tx.ExecContext(ctx, q.store.dialect.ReleaseLease, consumer, []byte(key.ID), token)
		return err
	})
}

// hold runs a statement that changes nothing unless token holds key.
func (q *sqlLeases) hold(ctx context.Context, key LeaseKey, statement string, token int64, d time.Duration) error {
	return q.write(ctx, key, func(ctx context.Context, tx *sqlx.Tx, consumer int32) error {
		n, err := database.Affected(tx.ExecContext(ctx, statement, d.Microseconds(), consumer, []byte(key.ID), token))
		if err == nil && n == 0 {
			return ErrLeaseLost
		}
		return err
	})
}

// write runs work in a short transaction. An autocommit statement that its context cancels
// could be committed later.
func (q *sqlLeases) write(ctx context.Context, key LeaseKey,
	work func(ctx context.Context, tx *sqlx.Tx, consumer int32) error) error {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	reg, err := q.consumer(key).Row(ctx)
	if err == nil {
		err = q.store.db.Write(ctx, func(tx *sqlx.Tx) error { return work(ctx, tx, reg.ID) })
	}
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("leases: %w", database.Explain(err))
	}
	return err
}

// consumer returns what registers the consumer of key. Its row has no retention, so the
// janitor does not look for claims of it.
func (q *sqlLeases) consumer(key LeaseKey) *stored.Registered {
	name := stored.Name{Name: stored.LeaseNames + key.Consumer, Epoch: key.Epoch}
	if c, ok := q.consumers.Load(name); ok {
		return c.(*stored.Registered)
	}
	c, _ := q.consumers.LoadOrStore(name, q.store.rows.Registered(stored.Self{Name: name, KeySource: key.Source}))
	return c.(*stored.Registered)
}
