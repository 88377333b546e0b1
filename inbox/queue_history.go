package inbox

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// occasion says why the history of a message gets an entry.
type occasion int

const (
	unnoted  occasion = -1 // it gets none, because this was no attempt
	putAside occasion = 0
	itFailed occasion = 1
)

// note adds the state of the stored message to its history. Call it after the statement that
// changes the row in tx: that one locks the row, and while it waits, it holds no lock in the
// history.
func (s *Store) note(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte, what occasion) error {
	if what == unnoted {
		return nil
	}
	return s.noteAll(ctx, tx, consumer, [][]byte{id}, what)
}

// noteAll is note for several messages.
func (s *Store) noteAll(ctx context.Context, tx *sqlx.Tx, consumer int32, ids [][]byte, what occasion) error {
	query, args, err := s.dialect.In(s.dialect.History.InsertHistory, what, consumer, ids, consumer, ids)
	if err == nil {
		_, err = tx.ExecContext(ctx, query, args...)
	}
	if err != nil {
		return fmt.Errorf("record the history of the message: %w", err)
	}
	return nil
}
