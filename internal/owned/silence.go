package owned

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// ErrUnanswered says that the server left BEGIN without an answer until the context ended, for [silence] at least, or the
// question of [Ask]. A server that is frozen, or a network that loses all packets, shows nothing else.
var ErrUnanswered = errors.New("the database has not answered")

// silence is how long a server that works never takes for BEGIN, for a question, nor for the end of a transaction.
const silence = 5 * time.Second

// ErrUnasked says that [Ask] learnt nothing. A connector returns it where the pool behind it has no connection free.
var ErrUnasked = errors.New("it was not asked")

// Ask asks the server for an answer, on any connection of pool. It returns [ErrUnanswered] if none comes, an error of the
// server's or the driver's as it is, and [ErrUnasked] if ctx ended meanwhile or no connection was free.
func Ask(ctx context.Context, pool *sql.DB) error {
	if UsedUp(pool) {
		return fmt.Errorf("%w: no connection is free", ErrUnasked)
	}
	idle := pool.Stats().Idle
	bounded, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	_, err := pool.ExecContext(bounded, "SELECT 1")
	switch {
	case err == nil || bounded.Err() == nil || errors.Is(err, ErrUnasked):
		return err
	case ctx.Err() != nil || idle == 0 && err == bounded.Err() && ofPgx(pool): //nolint:errorlint // what waited for the server says more
		return fmt.Errorf("%w: %v", ErrUnasked, err) //nolint:errorlint // the kind of err says less
	}
	return fmt.Errorf("%w a question for %v (%v)", ErrUnanswered, silence, err) //nolint:errorlint // the kind of err says less
}

// UsedUp reports whether whoever wants a connection of pool waits for one that is in use, by the caller itself maybe.
func UsedUp(pool *sql.DB) bool {
	s := pool.Stats()
	return s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections
}

// ofPgx reports whether stdlib.OpenDBFromPool of pgx may have made pool: it then keeps no connection idle, and waits for one of
// the pool behind it.
func ofPgx(pool *sql.DB) bool { return fmt.Sprintf("%T", pool.Driver()) == "*stdlib.Driver" }
