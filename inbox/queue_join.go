package inbox

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// A copy of a stored message is acked, because its row stands for both. While the message is being handled its row may
// be about to go: the run failed, somebody sent the message again, and the copy is what was sent. So whoever acks a
// copy of a message that is IN_PROGRESS notes that in its row, which then stays if the run fails.

// keptRow is what is known of a stored message.
type keptRow struct {
	Hash   int64         `db:"payload_hash"`
	Status stored.Status `db:"status"`
}

// kept returns what is stored under a key.
func (s *Store) kept(ctx context.Context, db sqlx.QueryerContext, consumer int32, id []byte) (row keptRow, err error) {
	err = sqlx.GetContext(ctx, db, &row, s.dialect.Queue.SelectStored, consumer, id)
	return row, err
}

// join notes in tx that the row of a message, which had this status, stands for a copy as well. It reports false if the
// row has changed since.
func (s *Store) join(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte, status stored.Status) (joined bool, err error) {
	if status != stored.InProgress {
		return true, nil
	}
	n, err := database.Affected(tx.ExecContext(ctx, s.dialect.Queue.JoinMessage, consumer, id))
	return n == 1, err
}

// join is [Store.join] for a copy that no transaction holds. The caller has a slot.
func (cl *claim) join() (joined bool, err error) {
	s := cl.consumer.store
	if cl.joins != stored.InProgress {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(cl.ctx, cl.consumer.config.Timeout)
	defer cancel()
	err = s.db.WriteInTurn(ctx, func(tx *sqlx.Tx) (err error) {
		joined, err = s.join(ctx, tx, cl.id32, cl.id, cl.joins)
		return err
	})
	return joined, err
}

// joinAlone is join for a caller without a slot.
func (cl *claim) joinAlone() (joined bool, err error) {
	leave, err := cl.consumer.slot(cl.ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	return cl.join()
}
