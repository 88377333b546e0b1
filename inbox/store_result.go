package inbox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Result returns what the handler of consumer stored with [SetResult] for the message with this
// key, or [ErrNotFound] if it stored nothing.
func (s *Store) Result(ctx context.Context, consumer, messageID string) (result json.RawMessage, err error) {
	for _, id := range keycode.Parse(messageID) {
		var claims []stored.Claim
		err := sqlx.SelectContext(ctx, s.db.Reader(ctx), &claims, s.dialect.StoryClaims, id, []byte(s.config.Namespace))
		if err != nil {
			return nil, fmt.Errorf("inbox: result of %q for consumer %q: %w", messageID, consumer, database.Explain(err))
		}
		for _, c := range claims { // the newest epoch counts
			if string(c.Name) == consumer && c.Body != nil {
				result = c.Body
			}
		}
	}
	if result == nil {
		return nil, fmt.Errorf("inbox: result of %q for consumer %q: %w", messageID, consumer, ErrNotFound)
	}
	return result, nil
}
