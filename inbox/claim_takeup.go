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

// replayOperator is who acts where a replay does.
func replayOperator(name string) stored.Operator {
	return stored.Operator{Name: "a replay", Reason: fmt.Sprintf(reserved.Refused+"%.200q", name)}
}

// refused reports whether the message is parked because it was replayed.
func refused(row *stored.Message) bool {
	return row.Status == stored.Parked && row.ReasonCode == stored.ReasonReplayed
}

// failed reports whether the message waits for an operator because its handler failed, and not
// because it must not be handled as it came.
func failed(row *stored.Message) bool {
	return row.Status == stored.FailedTerminal ||
		row.Status == stored.Parked && row.Attempts > 0 && !refused(row)
}

// takesUp reports whether a replayed message with this UUID and hash brings back what row is: what
// failed, and with a corrected payload also what is still to be tried. With a key that other
// messages have too, only the UUID tells a corrected message from another one.
func takesUp(row *stored.Message, uuid string, hash int64) bool {
	same := row.Hash == hash
	return (failed(row) || row.Status == stored.FailedRetryable && !same) && (same || string(row.UUID) == uuid)
}

// takeUp has a replayed message that failed here before tried again: it is no copy of its own
// failure. Where a queue serves the consumer the stored message is made due there, with the
// payload of the replayed one; else this delivery takes its place.
func (cl *Claim) takeUp(ctx context.Context, rowID int64) (next move, taken bool, err error) {
	s, d := cl.consumer.store, cl.delivery
	row, err := s.rows.Message(ctx, s.db.Reader(ctx), rowID)
	if errors.Is(err, ErrNotFound) {
		return look, true, nil // it is gone, and so is the claim
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
			return 0, false, fmt.Errorf("take up the message that had failed: %w", err)
		}
		d.log().Info("inbox: a replayed message had failed before, and is tried again", nil)
	case row.Status != stored.FailedRetryable || !d.is(row.Hash):
		return 0, false, nil
	case cl.consumer.config.OnReplay == ReplayAllow:
		served = false // whoever is first
	}
	return cl.inPlaceOf(row, served)
}

// inPlaceOf has the queue deliver what is stored, or this delivery take its place. Of a message
// that was not replayed when it failed all the effects are wanted, since there were none.
func (cl *Claim) inPlaceOf(row stored.Message, served bool) (next move, taken bool, err error) {
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
	cl.openRow, cl.asFirstSent = true, !marked
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

// takeUp makes due what a failed before, if it was replayed.
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
		return false, fmt.Errorf("take up the message that had failed: %w", err)
	}
	s.log.Info("inbox: a replayed message had failed before, and is tried again", q.event(a, "").fields())
	return true, nil
}

// answeredReplay says what became of a replayed message whose handler does not run now.
func (cl *Claim) answeredReplay() string {
	if cl.queued {
		return replayQueued
	}
	return replayDuplicate
}
