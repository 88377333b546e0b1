package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
)

// Aggregate is an aggregate as one consumer sees it.
type Aggregate struct {
	Consumer string
	Epoch    int
	ID       string
}

// Version returns the version that was applied last to a. [ErrNotFound] is returned for an
// aggregate of which the consumer has seen nothing. In a handler's context it reads in the
// handler's transaction.
func (s *Store) Version(ctx context.Context, a Aggregate) (int64, error) {
	consumer, err := s.consumerRow(ctx, a.Consumer, a.Epoch)
	if err != nil {
		return 0, fmt.Errorf("inbox: version of aggregate %q: %w", a.ID, err)
	}
	var row aggregateRow
	err = row.scan(s.reader(ctx).QueryRowxContext(ctx, s.dialect.Gate.SelectAggregate, consumer.ID, keycode.Encode(a.ID)))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("inbox: version of aggregate %q: %w", a.ID, explain(err))
	}
	return row.Version, nil
}

// SetVersion says that a was brought to version by other means: by a snapshot, or because
// what is missing will never come. Messages up to it are stale from then on, and what is
// held for the next one is released.
func (s *Store) SetVersion(ctx context.Context, a Aggregate, version int64, by Operator) error {
	if err := by.validate(); err != nil {
		return err
	}
	v := versioned{Version{a.ID, version}, keycode.Encode(a.ID)}
	if a.ID == "" || version < 0 {
		return fmt.Errorf("inbox: set version: %s is not possible", v)
	}
	consumer, err := s.consumerRow(ctx, a.Consumer, a.Epoch)
	if err != nil {
		return fmt.Errorf("inbox: set version of aggregate %q: %w", a.ID, err)
	}
	err = s.write(ctx, func(tx *sqlx.Tx) error {
		if err := s.raise(ctx, tx, consumer.ID, v); err != nil {
			return err
		}
		if _, err := s.releaseHeld(ctx, tx, consumer.ID, v); err != nil {
			return fmt.Errorf("release what is held: %w", err)
		}
		_, err = tx.ExecContext(ctx, s.dialect.InsertAudit, []byte(by.Name), []byte("set version"), []byte(by.Reason),
			consumer.ID, v.id, []byte(v.String()))
		return err
	})
	if err != nil {
		return fmt.Errorf("inbox: set version of aggregate %q: %w", a.ID, explain(err))
	}
	s.sayDecided(by, "set version", watermill.LogFields{
		"consumer": a.Consumer, "epoch": a.Epoch, "aggregate": a.ID, "version": version,
	})
	name := consumerName{a.Consumer, a.Epoch}
	s.advances.tell(name.prefix()+string(v.id), v.Number)
	s.wakeQueue(name)
	return nil
}

// raise brings an aggregate to v, which must not take it back: that would have messages
// handled again whose claims are there.
func (s *Store) raise(ctx context.Context, tx *sqlx.Tx, consumer int32, v versioned) error {
	_, err := tx.ExecContext(ctx, s.dialect.Gate.SetVersion, consumer, v.id, v.Number, 0, 0, []byte{})
	if err != nil {
		return err
	}
	var row aggregateRow // which is locked: its first message may have been with a handler until now
	if err := row.scan(tx.QueryRowContext(ctx, s.dialect.Gate.SelectAggregate, consumer, v.id)); err != nil {
		return err
	}
	if row.Version > v.Number {
		return fmt.Errorf("it is at version %d already, and cannot go back to %d: Forget begins anew", row.Version, v.Number)
	}
	return nil
}

// Forget has everything handled again that is delivered to the consumer again: it drops
// what the consumer has seen and how far its aggregates are, to rebuild a projection.
// Stop the consumer's handlers in every process first, and empty the projection; what was
// parked stays, and what was held is delivered anew. An outcome that the broker may lack
// keeps its claim. The journal stays, to be replayed, and goes with the claims of those that are
// handled again. To rebuild beside the running consumer raise its Epoch instead.
func (s *Store) Forget(ctx context.Context, consumer string, epoch int, by Operator) error {
	if err := by.validate(); err != nil {
		return err
	}
	row, err := s.consumerRow(ctx, consumer, epoch)
	if err == nil {
		err = s.forgetVersions(ctx, row, by)
	}
	if err == nil {
		err = s.releaseAll(ctx, row, "forgotten by "+by.Name)
	}
	if err == nil {
		err = s.forgetClaims(ctx, row)
	}
	s.forget()
	if err != nil {
		return fmt.Errorf("inbox: forget what consumer %q has seen: %w", consumer, explain(err))
	}
	s.sayDecided(by, "forget", watermill.LogFields{"consumer": consumer, "epoch": epoch})
	return nil
}

// forgottenAtOnce bounds what one transaction of [Store.Forget] changes.
const forgottenAtOnce = 500

func (s *Store) forgetVersions(ctx context.Context, consumer consumerRow, by Operator) error {
	err := s.write(ctx, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, s.dialect.Gate.LowerPurgeLine, consumer.ID); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, s.dialect.InsertAudit, []byte(by.Name), []byte("forget"), []byte(by.Reason),
			consumer.ID, []byte{}, []byte("everything the consumer has seen"))
		return err
	})
	if err != nil {
		return err
	}
	for last := []byte{}; ; {
		var aggregates [][]byte
		err := s.db.SelectContext(ctx, &aggregates, s.dialect.Gate.SelectVersions, consumer.ID, last, forgottenAtOnce)
		if err != nil || len(aggregates) == 0 {
			return err
		}
		if err := s.writeIn(ctx, s.dialect.Gate.DeleteVersions, consumer.ID, aggregates); err != nil {
			return err
		}
		last = aggregates[len(aggregates)-1]
	}
}

// releaseAll makes due all that the consumer holds.
func (s *Store) releaseAll(ctx context.Context, consumer consumerRow, reason string) error {
	for last := int64(0); ; {
		var held []struct {
			ID      int64
			Expired bool
		}
		err := s.db.SelectContext(ctx, &held, s.dialect.Gate.SelectHeldAges, consumer.ID, last, forgottenAtOnce)
		if err != nil || len(held) == 0 {
			return err
		}
		ids := make([]int64, 0, len(held))
		for _, h := range held {
			ids = append(ids, h.ID)
		}
		if err := s.writeIn(ctx, s.dialect.Gate.ReleaseAll, noteText(reason), ids); err != nil {
			return err
		}
		last = ids[len(ids)-1]
	}
}

// writeIn runs a statement with a list in a transaction of its own.
func (s *Store) writeIn(ctx context.Context, statement string, args ...any) error {
	query, args, err := s.dialect.In(statement, args...)
	if err != nil {
		return err
	}
	return s.write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

func (s *Store) forgetClaims(ctx context.Context, consumer consumerRow) error {
	for last := []byte{}; ; {
		var ids [][]byte
		if err := s.db.SelectContext(ctx, &ids, s.dialect.Gate.SelectForgetable, consumer.ID, last, forgottenAtOnce); err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		err := s.write(ctx, func(tx *sqlx.Tx) error {
			for _, statement := range []string{s.dialect.DeleteClaims, s.dialect.DeleteResults, s.dialect.History.DeleteHistory} {
				query, args, err := s.dialect.In(statement, consumer.ID, ids)
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

// consumerRow finds a consumer by its name.
func (s *Store) consumerRow(ctx context.Context, name string, epoch int) (consumerRow, error) {
	row, err := (&Consumer{store: s, config: ConsumerConfig{Name: name, Epoch: epoch}}).find(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("consumer %q, epoch %d: %w", name, epoch, ErrNotFound)
	}
	return row, explain(err)
}
