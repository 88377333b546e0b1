package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Aggregate is an aggregate as one consumer sees it.
type Aggregate struct {
	Consumer string
	Epoch    int
	ID       string
}

// Version returns the version of a that was applied last, or [ErrNotFound] if the consumer has seen
// nothing of the aggregate. With a handler's context it reads in the handler's transaction.
func (s *Store) Version(ctx context.Context, a Aggregate) (int64, error) {
	consumer, err := s.rows.Consumer(ctx, a.Consumer, a.Epoch)
	if err != nil {
		return 0, fmt.Errorf("inbox: version of aggregate %q: %w", a.ID, err)
	}
	var row stored.Aggregate
	err = row.Scan(s.db.Reader(ctx).QueryRowxContext(ctx, s.dialect.Gate.SelectAggregate, consumer.ID, keycode.Encode(a.ID)))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("inbox: version of aggregate %q: %w", a.ID, database.Explain(err))
	}
	return row.Version, nil
}
