package outbox

import (
	"context"
	"database/sql"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Where the server can end a transaction unseen, the INSERT refuses to run outside of one if
// the server lets it ask: MariaDB does. MySQL has nothing that a statement could ask, so the
// publisher sets a savepoint first, which outside of a transaction is gone at once. It does not
// set it at the beginning: to release that one would release those of the service as well.
const (
	guardUnknown int32 = iota
	guardBySavepoint
	guardByInsert
)

// querier is what a transaction is asked through; a wrapper may lack it.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// stands returns [ErrTxEnded] where a statement has ended the transaction and the INSERT would
// not notice. On PostgreSQL that takes a COMMIT or ROLLBACK sent as text, of which the driver is
// told.
func (p *Publisher) stands(ctx context.Context, to destination) error {
	if !p.db.Dialect.CommitsOnDDL {
		if to.owner.EndedUnderneath() {
			return ErrTxEnded
		}
		return nil
	}
	tx := to.tx
	guard, err := p.guardIn(ctx, tx)
	if err != nil || guard == guardByInsert {
		return err
	}
	if err := inTx(tx.ExecContext(ctx, `SAVEPOINT `+dialect.StandsSavepoint)); err != nil {
		return err
	}
	return inTx(tx.ExecContext(ctx, `RELEASE SAVEPOINT `+dialect.StandsSavepoint))
}

// guardIn asks the server behind tx once whether the INSERT is guarded. It asks tx: another
// connection may not be had while tx holds one. What cannot be asked has the savepoint, which
// is right on every server.
func (p *Publisher) guardIn(ctx context.Context, tx Tx) (int32, error) {
	if guard := p.guard.Load(); guard != guardUnknown {
		return guard, nil
	}
	asked, able := tx.(querier)
	if !able {
		return guardBySavepoint, nil
	}
	var guarded bool
	if err := asked.QueryRowContext(ctx, p.sql.SelectGuard).Scan(&guarded); err != nil {
		return guardUnknown, inTx(nil, err)
	}
	guard := guardBySavepoint
	if guarded {
		guard = guardByInsert
	}
	p.guard.Store(guard)
	return guard, nil
}
