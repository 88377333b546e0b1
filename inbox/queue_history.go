package inbox

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// occasion is why the history of a message may get an entry.
type occasion int

const (
	unnoted  occasion = -1 // it gets none: it was no attempt
	putAside occasion = 0
	itFailed occasion = 1
)

// note keeps in the history how the stored message is now. The caller has changed its row in tx, so nobody
// else does. It follows the row: who waits for the row holds nothing here.
func (s *Store) note(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte, what occasion) error {
	if what == unnoted {
		return nil
	}
	if _, err := tx.ExecContext(ctx, s.dialect.History.InsertHistory, what, consumer, id, consumer, id); err != nil {
		return fmt.Errorf("keep what happened to the message: %w", err)
	}
	return nil
}
