package inbox

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// adoptedTwin is a message that was parked when it moved to a new epoch, because it collides with
// another message there.
type adoptedTwin struct {
	*Leased
	key string
	why
}

// adoptTwin moves a message that collides with another message in the new epoch, as if it arrived
// now. If the other one was handled, the message is stored under the key, and the inbox judges it
// by its OnCollision. If the other one is stored, the message is parked. A message that was itself
// handled, or that waits for an operator, moves unchanged under an id of its own.
func (q *Queue) adoptTwin(
	ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, as rekeyed, theirs *lookup, tell tellParked,
) (superseded bool, twin *adoptedTwin, err error) {
	d := q.store.dialect
	own, err := q.knows(ctx, tx, row.Consumer, row.MessageID)
	if err != nil {
		return false, nil, err
	}
	handled := row.Status == stored.Settling || own != nil && own.completed() && own.of(row.Hash)
	if !handled && !row.Status.Stuck() && !theirs.OpenStatus.Valid {
		if _, err := tx.ExecContext(ctx, d.CloseClaim, stored.ResultSuperseded, row.Consumer, row.MessageID); err != nil {
			return false, nil, err
		}
		return false, nil, q.moveRow(ctx, tx, row, to, as.id)
	}
	id := keycode.Derive(as.id, as.print)
	if kept, err := q.knows(ctx, tx, to, id); kept != nil || err != nil {
		if err == nil {
			superseded, err = q.supersede(ctx, tx, row, to, id, kept)
		}
		if err == nil && !superseded {
			err = ErrLost
		}
		return superseded, nil, err
	}
	if err := q.moveTo(ctx, tx, row, to, id); err != nil || handled {
		return false, nil, err
	}
	twin, err = q.parkAdopted(ctx, tx, row, to, id, as, tell)
	return false, twin, err
}

// parkAdopted parks a moved message under the id of a collision. A message that already waits for
// an operator keeps its status and its reason; parkAdopted then returns nil, because nothing new is
// to be reported.
func (q *Queue) parkAdopted(
	ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, id []byte, as rekeyed, tell tellParked,
) (*adoptedTwin, error) {
	d := q.store.dialect
	key := keycode.String(as.id)
	because := why{ReasonCollision, "same key as message " + key + ", other payload"}
	status, text := stored.Parked, noteText(because.text)
	if row.Status.Stuck() {
		status, text = row.Status, row.Reason
	}
	if _, err := tx.ExecContext(ctx, d.OpenClaim, to, id, row.Hash, 1); err != nil {
		return nil, fmt.Errorf("claim the id of a collision: %w", err)
	}
	if _, err := tx.ExecContext(ctx, d.Queue.ParkAdopted, as.id, status, text, stored.Never.Microseconds(), to, id); err != nil {
		return nil, fmt.Errorf("park a collision: %w", err)
	}
	if row.Status.Stuck() {
		return nil, nil //nolint:nilnil // nothing new is to be reported
	}
	if err := q.store.note(ctx, tx, to, id, putAside, nil); err != nil {
		return nil, err
	}
	row.Consumer, row.MessageID, row.Original = to, id, as.id
	twin := &adoptedTwin{newLeased(q, row, 0, false), key, because}
	if as.msg == nil {
		return twin, nil // it cannot be read, so OnPark is not called
	}
	return twin, tell(as.msg.Copy(), because.text)
}

// observeAdoptedTwin reports a collision that was found when a message moved to a new epoch.
func (q *Queue) observeAdoptedTwin(ctx context.Context, twin *adoptedTwin) {
	parked := fate{status: stored.Parked, attempts: twin.row.Attempts, why: twin.why, last: twin.last()}
	e := twin.event(parked)
	q.observeFate(ctx, e, parked)
	e.MessageID, e.Reason = twin.key, ReasonCollision
	q.tellCollision(ctx, e)
}
