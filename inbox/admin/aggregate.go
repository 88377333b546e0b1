package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Aggregate returns what the consumer knows of an aggregate, whose id may be written as [Admin.Waiting] shows
// it, or [inbox.ErrNotFound] if it has seen nothing of it. If no message is held, Held is 0. Aggregate
// counts up to 100 messages.
func (a *Admin) Aggregate(ctx context.Context, of inbox.Aggregate) (WaitingAggregate, error) {
	consumer, err := a.rows.Consumer(ctx, of.Consumer, of.Epoch)
	var found WaitingAggregate
	var known bool
	if err == nil {
		found, known, err = a.lookUp(ctx, consumer, of.ID)
	}
	if err == nil && !known {
		err = inbox.ErrNotFound
	}
	if err != nil {
		return found, fmt.Errorf("inbox: look for aggregate %q: %w", of.ID, database.Explain(err))
	}
	return found, nil
}

// lookUp returns the aggregate that is shown as shown. One that is not known has the stored id of a new one.
func (a *Admin) lookUp(ctx context.Context, c stored.Consumer, shown string) (found WaitingAggregate, known bool, err error) {
	for _, id := range keycode.Parse(shown) {
		var held []waitingRow
		err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &held, a.rows.Dialect.Gate.SelectHeld, c.ID, id, heldPage)
		if err != nil {
			return found, false, err
		}
		var row stored.Aggregate
		err = row.Scan(a.rows.Reader(ctx).QueryRowxContext(ctx, a.rows.Dialect.Gate.SelectAggregate, c.ID, id))
		switch {
		case errors.Is(err, sql.ErrNoRows) && len(held) == 0:
			continue
		case err != nil && !errors.Is(err, sql.ErrNoRows):
			return found, false, err
		case len(held) > 0:
			found = newWaiting(c, held)
			found.Held.AtLeast = len(held) == heldPage
		default:
			found = newWaiting(c, []waitingRow{{Aggregate: id}})
			found.Held, found.Lowest, found.Since = Count{}, 0, time.Time{}
		}
		found.Applied = row.Version
		return found, true, nil
	}
	return WaitingAggregate{id: keycode.Encode(shown)}, false, nil
}

// SetVersion records that an aggregate was brought to version by other means: by a snapshot, or by an
// operator who knows that the missing messages will never come. From then on messages up to version
// are stale, and SetVersion releases the message that is held for the next one. It takes the
// aggregate's id also as [Admin.Waiting] shows it. It returns [inbox.ErrWrongState] if the aggregate is
// at a later version already.
func (a *Admin) SetVersion(ctx context.Context, of inbox.Aggregate, version int64, by Operator) error {
	return a.setVersion(ctx, of, version, by, nil)
}

// SkipGap is [Admin.SetVersion] with version to, if exactly the versions from up to that one are missing before the first
// held message. Otherwise, also if one of them came at this moment, it changes nothing and returns
// [inbox.ErrWrongState].
func (a *Admin) SkipGap(ctx context.Context, of inbox.Aggregate, from, to int64, by Operator) error {
	return a.setVersion(ctx, of, to, by, func(tx *sqlx.Tx, consumer int32, id []byte) error {
		gate := a.rows.Dialect.Gate
		if _, err := tx.ExecContext(ctx, gate.LockAggregates, consumer, id, 0, 0, 0, []byte{}, 0); err != nil {
			return fmt.Errorf("lock it: %w", err)
		}
		var row stored.Aggregate
		if err := row.Scan(tx.QueryRowContext(ctx, gate.SelectAggregate, consumer, id)); err != nil {
			return err
		}
		var first []waitingRow
		if err := tx.SelectContext(ctx, &first, gate.SelectHeld, consumer, id, 1); err != nil {
			return err
		}
		if row.Version != from-1 || len(first) == 0 || first[0].Version != to+1 {
			return fmt.Errorf("versions %d to %d are not what it misses now: %w", from, to, inbox.ErrWrongState)
		}
		return nil
	})
}

// setVersion sets a version unless check, which may be nil, returns an error.
func (a *Admin) setVersion(
	ctx context.Context, of inbox.Aggregate, version int64, by Operator, check func(tx *sqlx.Tx, consumer int32, id []byte) error,
) error {
	if err := by.Validate(); err != nil {
		return err
	}
	v := inbox.Version{Aggregate: of.ID, Number: version}
	if of.ID == "" || version < 0 {
		return fmt.Errorf("inbox: set version: %s is not possible", v)
	}
	consumer, err := a.rows.Consumer(ctx, of.Consumer, of.Epoch)
	if err != nil {
		return fmt.Errorf("inbox: set version of aggregate %q: %w", of.ID, err)
	}
	at, _, err := a.lookUp(ctx, consumer, of.ID)
	if err == nil {
		err = a.rows.Write(ctx, func(tx *sqlx.Tx) error {
			if check != nil {
				if err := check(tx, consumer.ID, at.id); err != nil {
					return err
				}
			}
			if err := a.raise(ctx, tx, consumer.ID, at.id, v.Number); err != nil {
				return err
			}
			if err := a.inbox.Release(ctx, tx, consumer.ID, at.id, v); err != nil {
				return fmt.Errorf("release what is held: %w", err)
			}
			return a.rows.AuditOf(ctx, tx, by, "set version", consumer.ID, at.id, v.String())
		})
	}
	if err != nil {
		return fmt.Errorf("inbox: set version of aggregate %q: %w", of.ID, database.Explain(err))
	}
	a.inbox.Decided(by, "set version", watermill.LogFields{
		"consumer": of.Consumer, "epoch": of.Epoch, "aggregate": of.ID, "version": version,
	})
	a.inbox.Advanced(stored.Name{Name: of.Consumer, Epoch: of.Epoch}, at.id, version)
	return nil
}

// raise raises an aggregate to version. It must not lower the version: the gate would apply messages
// again although their claims are there.
func (a *Admin) raise(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte, version int64) error {
	_, err := tx.ExecContext(ctx, a.rows.Dialect.Gate.SetVersion, consumer, id, version, 0, 0, []byte{})
	if err != nil {
		return err
	}
	var row stored.Aggregate // locked: a handler may have held its first message until now
	if err := row.Scan(tx.QueryRowContext(ctx, a.rows.Dialect.Gate.SelectAggregate, consumer, id)); err != nil {
		return err
	}
	if row.Version > version {
		return fmt.Errorf("it is at version %d, and cannot go back to %d (Admin.Forget begins anew): %w", row.Version, version, inbox.ErrWrongState)
	}
	return a.raiseHeld(ctx, tx, consumer, id, row.HeldTo)
}

// raiseHeld records that messages of the aggregate are held, if that is not recorded: the gate holds some of an aggregate that has
// not begun.
func (a *Admin) raiseHeld(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte, known int64) error {
	var held []waitingRow
	err := tx.SelectContext(ctx, &held, a.rows.Dialect.Gate.SelectHeld, consumer, id, math.MaxInt32)
	if err != nil || len(held) == 0 || held[len(held)-1].Version <= known {
		return err
	}
	_, err = tx.ExecContext(ctx, a.rows.Dialect.Gate.RaiseHeld, held[len(held)-1].Version, consumer, id)
	return err
}

// Forget makes the consumer handle everything again that is delivered again, to rebuild a
// projection: it deletes the consumer's claims and the versions of its aggregates. First stop the
// consumer's handlers in every process and empty the projection. Parked messages stay; held
// messages are made due. A claim stays while the broker may lack its outcome. The journal stays, to
// be replayed: an entry keeps its payload even if its message is handled again with another one. To
// rebuild beside the running consumer, have a second one under another name, or, without
// pubsub.Durable, with a higher Epoch.
func (a *Admin) Forget(ctx context.Context, consumer string, epoch int, by Operator) error {
	if err := by.Validate(); err != nil {
		return err
	}
	row, err := a.rows.Consumer(ctx, consumer, epoch)
	if err == nil {
		err = a.forgetVersions(ctx, row, by)
	}
	if err == nil {
		err = a.releaseAll(ctx, row, "forgotten by "+by.Name)
	}
	if err == nil {
		err = a.forgetClaims(ctx, row)
	}
	a.rows.Forget()
	if err != nil {
		return fmt.Errorf("inbox: forget the claims of consumer %q: %w", consumer, database.Explain(err))
	}
	a.inbox.Decided(by, "forget", watermill.LogFields{"consumer": consumer, "epoch": epoch})
	return nil
}

// forgottenAtOnce is how many rows one transaction of [Admin.Forget] changes at most.
const forgottenAtOnce = 500

func (a *Admin) forgetVersions(ctx context.Context, consumer stored.Consumer, by Operator) error {
	gate := &a.rows.Dialect.Gate
	err := a.rows.Write(ctx, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, gate.LowerPurgeLine, consumer.ID); err != nil {
			return err
		}
		return a.rows.AuditOf(ctx, tx, by, "forget", consumer.ID, []byte{}, "everything the consumer has seen")
	})
	if err != nil {
		return err
	}
	for last := []byte{}; ; {
		var aggregates [][]byte
		err := a.rows.SelectContext(ctx, &aggregates, gate.SelectVersions, consumer.ID, last, forgottenAtOnce)
		if err != nil || len(aggregates) == 0 {
			return err
		}
		if err := a.writeIn(ctx, gate.DeleteVersions, consumer.ID, aggregates); err != nil {
			return err
		}
		last = aggregates[len(aggregates)-1]
	}
}

// releaseAll makes due every message that the consumer holds.
func (a *Admin) releaseAll(ctx context.Context, consumer stored.Consumer, reason string) error {
	gate := &a.rows.Dialect.Gate
	for last := int64(0); ; {
		var held []struct {
			ID      int64 `db:"id"`
			Expired bool  `db:"expired"`
		}
		err := a.rows.SelectContext(ctx, &held, gate.SelectHeldAges, consumer.ID, last, forgottenAtOnce)
		if err != nil || len(held) == 0 {
			return err
		}
		ids := make([]int64, 0, len(held))
		for _, h := range held {
			ids = append(ids, h.ID)
		}
		if err := a.writeIn(ctx, gate.ReleaseAll, []byte(reason), ids); err != nil {
			return err
		}
		last = ids[len(ids)-1]
	}
}

// writeIn runs a statement with a list of values in its own transaction.
func (a *Admin) writeIn(ctx context.Context, statement string, args ...any) error {
	query, args, err := a.rows.Dialect.In(statement, args...)
	if err != nil {
		return err
	}
	return a.rows.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

func (a *Admin) forgetClaims(ctx context.Context, consumer stored.Consumer) error {
	for last := []byte{}; ; {
		var ids [][]byte
		if err := a.rows.SelectContext(ctx, &ids, a.rows.Dialect.Gate.SelectForgetable, consumer.ID, last, forgottenAtOnce); err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		err := a.rows.Write(ctx, func(tx *sqlx.Tx) error {
			for _, statement := range []string{a.rows.Dialect.DeleteClaims, a.rows.Dialect.DeleteResults, a.rows.Dialect.History.DeleteHistory} {
				query, args, err := a.rows.Dialect.In(statement, consumer.ID, ids)
				if err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, query, args...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		last = ids[len(ids)-1]
	}
}
