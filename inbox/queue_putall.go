package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// putAll stores messages in the order of their arrival, which is the order of their delivery. It
// uses one transaction, unless that deadlocks with a writer that stores them in another order: a
// second try would meet that writer again. Then putAll uses a transaction for each message, which
// may wait but cannot deadlock.
func (q *Queue) putAll(ctx context.Context, consumer int32, all []*arrival) error {
	err := q.putTogether(ctx, consumer, all)
	var crossed *crossedError
	if !errors.As(err, &crossed) {
		return err
	}
	q.observeContention(ctx, crossed.cause)
	for i := range all {
		if err := q.putTogether(ctx, consumer, all[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// A crossedError says that a transaction with several messages conflicted with another writer. It
// hides its cause, so that nobody tries the same transaction again.
type crossedError struct{ cause error }

func (e *crossedError) Error() string { return e.cause.Error() }

func (q *Queue) putTogether(ctx context.Context, consumer int32, all []*arrival) error {
	_, live := q.store.db.Live(ctx)
	divisible := len(all) > 1 && !live
	var parked, kept []*arrival
	err := errDisputed
	for errors.Is(err, errDisputed) || errors.Is(err, errOvertaken) {
		err = q.write(ctx, func(ctx context.Context, tx *sqlx.Tx, tell tellParked) (err error) {
			parked, kept, err = q.putIn(ctx, tx, consumer, all, tell)
			if divisible && dialect.Classify(err) == dialect.Contention {
				return &crossedError{err}
			}
			return err
		})
	}
	if err != nil {
		return err
	}
	for _, a := range parked {
		q.observeCollision(ctx, a)
	}
	for _, a := range kept {
		q.observeKept(ctx, a)
	}
	return nil
}

func (q *Queue) putIn(
	ctx context.Context, tx *sqlx.Tx, consumer int32, all []*arrival, tell tellParked,
) (parked, kept []*arrival, err error) {
	if err := q.openDisputed(ctx, tx, consumer, all); err != nil {
		return nil, nil, err
	}
	var disputed error
	for _, a := range all {
		a.past, a.joins = false, false
		if a.status == stored.FailedTerminal {
			stored, err := q.putTerminal(ctx, tx, consumer, a, tell)
			if err != nil {
				return nil, nil, fmt.Errorf("message %q: %w", a.msg.UUID, err)
			}
			if stored != nil {
				kept = append(kept, stored)
			}
			continue
		}
		twin, err := q.putOne(ctx, tx, consumer, a)
		if errors.Is(err, errDisputed) { // go on, to find all of them in one round
			disputed = err
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("message %q: %w", a.msg.UUID, err)
		}
		if twin != nil {
			parked = append(parked, twin)
			if err := tell(a.msg.Copy(), twin.text); err != nil {
				return nil, nil, err
			}
		}
	}
	if disputed == nil {
		disputed = q.joinAll(ctx, tx, consumer, all)
	}
	return parked, kept, disputed
}

// errOvertaken makes putTogether store the messages again, because the run of one of them has ended meanwhile.
var errOvertaken = errors.New("a message that was being handled no longer is")

// joinAll notes which messages that are being handled have a copy among all. It does so last, and in the order of their
// ids: these rows are the only ones that others may have locked, such as another intake, or a batch that completes them.
func (q *Queue) joinAll(ctx context.Context, tx *sqlx.Tx, consumer int32, all []*arrival) error {
	joining := slices.DeleteFunc(slices.Clone(all), func(a *arrival) bool { return !a.joins })
	slices.SortStableFunc(joining, func(a, b *arrival) int { return bytes.Compare(a.id, b.id) })
	for _, a := range joining {
		joined, err := q.store.join(ctx, tx, consumer, a.id, stored.InProgress)
		if err == nil && !joined {
			err = errOvertaken
		}
		if err != nil {
			return fmt.Errorf("message %q: %w", a.msg.UUID, err)
		}
	}
	return nil
}

// refused returns err, with which the database did not store all. It blames a single message that is too large.
func (q *Queue) refused(ctx context.Context, err error, all ...*arrival) error {
	err = q.store.db.Noticed(err)
	if len(all) == 1 {
		err = q.store.refused(ctx, err, all[0].payload.texts(all[0].msg.Metadata)...)
	}
	return err
}
