package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// moveSteps notes the new id of a message with its steps, so that the janitor keeps them as long as the message is open.
func (q *Queue) moveSteps(ctx context.Context, tx *sqlx.Tx, row stored.Message, id []byte) error {
	if bytes.Equal(id, row.MessageID) {
		return nil
	}
	_, err := tx.ExecContext(ctx, q.store.dialect.Steps.MoveSteps, id, row.MessageID, []byte(q.store.config.Namespace), []byte(q.name.Name))
	return err
}

// expiredStep is a step that was not used within the retention of its consumer.
type expiredStep struct {
	ID        []byte `db:"id"`
	Namespace []byte `db:"namespace"`
	Consumer  []byte `db:"consumer"`
	Epoch     int    `db:"epoch"`
	Until     int64  `db:"until"`
	Needed    bool   `db:"needed"` // its message is open
}

// purgeSteps deletes steps that were not used within the retention of their consumers. Once it has passed over some pages
// of steps that are needed, it leaves the others to the next call.
func (j *janitor) purgeSteps(ctx context.Context, now int64) error {
	for _, state := range []stored.StepState{stored.StepDone, stored.StepNotDone} {
		if err := j.purgeStepsIn(ctx, state, now); err != nil {
			return fmt.Errorf("purge steps: %w", err)
		}
	}
	return nil
}

func (j *janitor) purgeStepsIn(ctx context.Context, state stored.StepState, now int64) error {
	const page = 500
	s := j.store
	for passed := 0; passed/page < j.pages; {
		var expired []expiredStep
		if err := s.db.SelectContext(ctx, &expired, s.dialect.Steps.SelectExpired, state, j.steps[state], now, page); err != nil {
			return err
		}
		ids, err := j.unneeded(ctx, expired)
		if err == nil && len(ids) > 0 {
			err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
				query, args, err := s.dialect.In(s.dialect.Steps.DeleteSteps, now, ids)
				if err == nil {
					_, err = tx.ExecContext(ctx, query, args...)
				}
				return err
			})
		}
		if err != nil {
			return err
		}
		if len(expired) < page {
			delete(j.steps, state)
			return nil
		}
		last := expired[page-1].Until
		if last == j.steps[state] && len(ids) == 0 { // a whole page of one moment, all of it needed
			last++
		}
		j.steps[state] = last
		passed += page - len(ids)
	}
	return nil
}

// unneeded returns the steps that belong to no open message. It reads the consumers and their messages after the
// steps, so that a message that moves to another epoch meanwhile is found in one of the two.
func (j *janitor) unneeded(ctx context.Context, expired []expiredStep) (ids [][]byte, err error) {
	expired = slices.DeleteFunc(slices.Clone(expired), func(s expiredStep) bool { return s.Needed })
	if len(expired) == 0 {
		return nil, nil
	}
	o := openMessages{store: j.store, first: make(map[int32]int64)}
	if err := j.store.db.SelectContext(ctx, &o.consumers, j.store.dialect.SelectConsumers); err != nil {
		return nil, err
	}
	for _, step := range expired {
		needed, err := o.mayNeed(ctx, step)
		if err != nil {
			return nil, err
		}
		if !needed {
			ids = append(ids, step.ID)
		}
	}
	return ids, nil
}

// openMessages finds open messages that may have an expired step although they are stored under another id.
type openMessages struct {
	store     *Store
	consumers []stored.Consumer // by their names and epochs
	first     map[int32]int64   // when the first open message of a consumer came
}

// mayNeed reports whether a message is open that came before the step expired, and whose queue may know it by another key than
// the step does.
func (o *openMessages) mayNeed(ctx context.Context, step expiredStep) (bool, error) {
	var own, leased *stored.Consumer // the consumers that the step may be of
	for i, c := range o.consumers {
		switch {
		case string(c.Namespace) != string(step.Namespace) || c.Epoch != step.Epoch:
		case string(c.Name) == string(step.Consumer):
			own = &o.consumers[i]
		case string(c.Name) == stored.LeaseNames+string(step.Consumer):
			leased = &o.consumers[i]
		}
	}
	for _, c := range o.consumers {
		if string(c.Namespace) != string(step.Namespace) || c.IsOfLeases() {
			continue
		}
		// The queue of middleware.Inbox has the name of its consumer, that of middleware.Deduplicate perhaps the handler's.
		if string(c.Name) != string(step.Consumer) && leased == nil && own != nil {
			continue
		}
		known := own != nil || leased != nil
		if known && (own == nil || own.HasKeyOf(c)) && (leased == nil || leased.HasKeyOf(c)) {
			continue // it has stored the message under the id that the step has
		}
		first, err := o.firstOf(ctx, c.ID)
		if err != nil || first <= step.Until {
			return err == nil, err
		}
	}
	return false, nil
}

// firstOf returns when the first open message of a consumer came.
func (o *openMessages) firstOf(ctx context.Context, consumer int32) (int64, error) {
	if first, known := o.first[consumer]; known {
		return first, nil
	}
	const some = 1000 // a message that came from another epoch may be younger than its place says
	s, first, open := o.store, int64(math.MaxInt64), false
	if err := s.db.GetContext(ctx, &open, s.dialect.Queue.SelectOpen, consumer); err != nil {
		return 0, err
	}
	for _, status := range stored.Open {
		if !open {
			break
		}
		var at sql.NullInt64
		if err := s.db.GetContext(ctx, &at, s.dialect.Queue.SelectFirst, consumer, status, some); err != nil {
			return 0, err
		}
		if at.Valid {
			first = min(first, at.Int64)
		}
	}
	o.first[consumer] = first
	return first, nil
}
