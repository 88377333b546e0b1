package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/reserved"
	"github.com/millrace-go/millrace/internal/stored"
)

// replayOperator returns the operator that the audit table names for a replay.
func replayOperator(name string) stored.Operator {
	return stored.Operator{Name: "a replay", Reason: fmt.Sprintf(reserved.Refused+"%.200q", name)}
}

// parkedAsReplay reports whether row is parked because the message was replayed.
func parkedAsReplay(row *stored.Message) bool {
	return row.Status == stored.Parked && row.ReasonCode == stored.ReasonReplayed
}

// failed reports whether row waits for an operator because the handler failed, and not because
// the message must not be handled as it came.
func failed(row *stored.Message) bool {
	return row.Status == stored.FailedTerminal ||
		row.Status == stored.Parked && row.Attempts > 0 && !parkedAsReplay(row)
}

// takesUp reports whether a replayed message with this UUID and hash revives row: one that failed or,
// if the payload was corrected, also one that is to be retried anyway. Other messages may share the
// key, so only the UUID distinguishes a corrected message from another one.
func takesUp(row *stored.Message, uuid string, hash int64) bool {
	same := row.Hash == hash
	return (failed(row) || row.Status == stored.FailedRetryable && !same) && (same || string(row.UUID) == uuid)
}

// takeUp lets a replayed message that failed before be tried again: it is not a copy of its own
// failure. If a queue serves the consumer, takeUp makes the stored message due there, with the
// payload of the replayed one; else this delivery replaces it.
func (cl *claim) takeUp(ctx context.Context, rowID int64) (next move, taken bool, err error) {
	s, d := cl.consumer.store, cl.delivery
	row, err := s.rows.Message(ctx, s.db.Reader(ctx), rowID)
	if errors.Is(err, ErrNotFound) {
		return look, true, nil // the row is gone, and so is the claim
	}
	if err != nil {
		return 0, false, err
	}
	served, err := s.rows.Served(ctx, &row)
	if err != nil {
		return 0, false, err
	}
	switch {
	case takesUp(&row, d.as.Came.UUID, d.hash):
		err := s.db.WriteInTurn(ctx, func(tx *sqlx.Tx) error { return s.revive(ctx, tx, row, d.as.Came.Copy(), d.hash) })
		if stored.IsConflict(err) {
			return look, true, nil
		}
		if err != nil {
			return 0, false, fmt.Errorf("revive the failed message: %w", err)
		}
		d.log().Info("inbox: a replayed message had failed before, and is tried again", nil)
	case row.Status != stored.FailedRetryable || !d.is(row.Hash):
		return 0, false, nil
	case cl.consumer.config.OnReplay == ReplayAllow:
		served = false // this delivery or the queue, whichever comes first
	}
	return cl.inPlaceOf(row, served)
}

// inPlaceOf leaves the stored message to its queue, or lets this delivery replace it. If the stored
// message was no replay itself, it has had no effects yet, and none are suppressed.
func (cl *claim) inPlaceOf(row stored.Message, served bool) (next move, taken bool, err error) {
	metadata, err := row.Decoded()
	if err != nil {
		return 0, false, Terminal(err)
	}
	_, marked := metadata[ReplayField]
	if served && !marked {
		cl.consumer.store.wakeQueue(row.Of())
		cl.answer, cl.queued = "stored as "+stored.FailedRetryable.String(), true
		return done, true, nil
	}
	cl.openRow, cl.openAs, cl.asFirstSent = true, stored.FailedRetryable, !marked
	return retake, true, nil
}

// revive makes row due, with the payload of the replayed message.
func (s *Store) revive(ctx context.Context, tx *sqlx.Tx, row stored.Message, msg *message.Message, hash int64) error {
	name, _ := replayed(msg)
	by := replayOperator(name)
	if row.LeaseToken != 0 {
		return ErrInProgress
	}
	if row.Hash != hash {
		corrected, err := row.With(msg.Payload)
		if err == nil {
			err = s.replaceIn(ctx, tx, by, &row, corrected, hash)
		}
		if err != nil {
			return err
		}
	}
	return s.rows.MakeDue(ctx, tx, by, stored.Replay, &row)
}

// takeUp makes the stored message due if it failed before and a is a replay of it.
func (q *Queue) takeUp(ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival) (revived bool, err error) {
	if _, is := replayed(a.msg); !is {
		return false, nil
	}
	s := q.store
	var open lookup
	err = open.scan(tx.QueryRowContext(ctx, s.dialect.Lookup, consumer, a.id))
	if errors.Is(err, sql.ErrNoRows) || err == nil && !open.OpenID.Valid {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up the claim: %w", err)
	}
	row, err := s.rows.Message(ctx, tx, open.OpenID.Int64)
	if err != nil || open.Result != stored.ResultOpen || !takesUp(&row, a.msg.UUID, a.hash) {
		return false, err
	}
	if err := s.revive(ctx, tx, row, a.msg, a.hash); err != nil {
		return false, fmt.Errorf("revive the failed message: %w", err)
	}
	s.log.Info("inbox: a replayed message had failed before, and is tried again", q.event(a, "").fields())
	return true, nil
}

// answeredReplay returns the reason that [KindReplayed] gives for a message whose handler does not run now.
func (cl *claim) answeredReplay() string {
	if cl.queued {
		return replayQueued
	}
	return replayDuplicate
}
