package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/owned"
)

// unlessSilent is [Store.unlessSilent] for what ran out of TwinWait, of Timeout, or of another bound of the inbox. It
// returns other errors as they are.
func (cl *claim) unlessSilent(err error) error {
	if !errors.Is(err, ErrInProgress) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return cl.consumer.store.unlessSilent(cl.ctx, err)
}

// unlessSilent asks the database for an answer after err, with which a claim ran out of time. A server that answers nothing
// looks like a twin, above all through a driver that sends BEGIN with the claim. If it does not answer now either,
// unlessSilent returns an error that says so. If it cannot be asked, a twin's err becomes an [owned.ErrUnasked] too.
func (s *Store) unlessSilent(ctx context.Context, err error) error {
	if s.dialect.OneWriter || saysOf(err).Down() {
		return err
	}
	twin := errors.Is(err, ErrInProgress)
	switch asked := owned.Ask(ctx, s.db.DB.DB); {
	case saysOf(asked).Down() && twin:
		return fmt.Errorf("claim: %w, nor the claim before it", asked)
	case saysOf(asked).Down():
		return fmt.Errorf("%w; before that: %v", asked, err) //nolint:errorlint // the database is to blame
	case twin && errors.Is(asked, owned.ErrUnasked):
		return fmt.Errorf("%w, or the database does not answer: %w", err, asked)
	}
	return err
}
