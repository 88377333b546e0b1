package inbox

import (
	"context"
	"crypto/sha256"
	"strconv"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// adoptHandled takes over a row whose key a message of the older epoch has that was handled. The new epoch
// handles everything again, so that claim stays where it is, with its journal and its history.
//   - A copy of that message is closed, as the older epoch would have done.
//   - If what the handler returned is not published yet, the row moves with it, to be published, under an id
//     that no message has.
//   - Another message is a collision, and is parked.
func (q *Queue) adoptHandled(
	ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, as rekeyed, own *lookup, tell tellParked,
) (closed bool, twin *adoptedTwin, err error) {
	d := q.store.dialect
	switch {
	case own.unpublished(row):
		id := keycode.Derive(as.id, sha256.Sum256([]byte("outcome of row "+strconv.FormatInt(row.ID, 10))))
		if _, err := tx.ExecContext(ctx, d.Queue.KeepClaim, to, id, row.Consumer, row.MessageID); err != nil {
			return false, nil, err
		}
		for _, statement := range []string{d.Queue.AdoptMessage, d.Queue.AdoptOutcome} {
			if _, err := tx.ExecContext(ctx, statement, to, id, row.Consumer, row.MessageID); err != nil {
				return false, nil, err
			}
		}
		return false, nil, nil
	case own.copied(row):
		_, err := tx.ExecContext(ctx, d.DeleteMessage, row.Consumer, row.MessageID, row.Status)
		return err == nil, nil, err
	}
	id := keycode.Derive(as.id, as.print)
	if kept, err := q.knows(ctx, tx, to, id); kept != nil || err != nil {
		if err == nil {
			closed, err = q.supersede(ctx, tx, row, to, id, kept)
		}
		if err == nil && !closed {
			err = ErrLost
		}
		return closed, nil, err
	}
	if err := q.dropHistory(ctx, tx, to, id); err != nil {
		return false, nil, err
	}
	if _, err := tx.ExecContext(ctx, d.Queue.AdoptMessage, to, id, row.Consumer, row.MessageID); err != nil {
		return false, nil, err
	}
	twin, err = q.parkAdopted(ctx, tx, row, to, id, as, tell)
	return false, twin, err
}

// copied reports whether row is a copy of the message that was handled.
func (l *lookup) copied(row stored.Message) bool {
	return l.Result == stored.ResultImported || l.Hash == row.Hash
}

// unpublished reports whether row is of the message that was handled, and what the handler returned is not published yet.
func (l *lookup) unpublished(row stored.Message) bool { return l.copied(row) && l.Outcome != nil }
