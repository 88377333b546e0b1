package outbox

import (
	"context"
	"database/sql"
	"sync/atomic"
	"weak"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// MySQL and MariaDB can end a transaction unseen. On MariaDB the INSERT asks the server and
// refuses to run outside a transaction. MySQL has nothing that a statement could ask, so the
// publisher sets and releases a savepoint before each INSERT: outside a transaction the savepoint
// vanishes at once, and the release fails. A single savepoint at the start would not do: to
// release that one would release those of the service as well.
const (
	guardUnknown int32 = iota
	guardBySavepoint
	guardByInsert
)

// querier is the method by which guardIn queries a transaction; a wrapper may lack it.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// stands returns [ErrTxEnded] where a statement has ended the transaction and the INSERT would
// not notice. On PostgreSQL only a COMMIT or ROLLBACK sent as text does that, and the server
// tells the driver.
func (p *Publisher) stands(ctx context.Context, to destination) error {
	if !p.db.Dialect.CommitsOnDDL {
		if to.owner.EndedUnderneath() {
			return ErrTxEnded
		}
		return nil
	}
	tx := to.tx
	guard, err := p.guardIn(ctx, tx, p.guardFor(to))
	if err != nil || guard == guardByInsert {
		return err
	}
	if err := inTx(tx.ExecContext(ctx, `SAVEPOINT `+dialect.StandsSavepoint)); err != nil {
		return err
	}
	return inTx(tx.ExecContext(ctx, `RELEASE SAVEPOINT `+dialect.StandsSavepoint))
}

// guardFor returns what is known of the pool of a transaction or, where that is not the publisher's
// and the transaction does not name it, of the transaction itself.
func (p *Publisher) guardFor(to destination) *atomic.Int32 {
	if to.owner != nil {
		return p.guardOf(to.owner.Pool())
	}
	own := false
	switch tx := to.tx.(type) {
	case *sqlx.Tx:
		own = isOn(tx.Tx, p.db.DB)
	case *sql.Tx:
		own = isOn(tx, p.db.DB)
	}
	if own {
		return p.guardOf(p.db.DB.DB)
	}
	return &to.given.guard
}

// guardOf returns what is known of a pool.
func (p *Publisher) guardOf(pool *sql.DB) *atomic.Int32 {
	key := weak.Make(pool)
	known, some := p.guards.Load(key)
	if !some {
		known, _ = p.guards.LoadOrStore(key, new(atomic.Int32))
	}
	return known.(*atomic.Int32) //nolint:forcetypeassert // it holds no others
}

// guardIn asks the server, unless that is known, whether the INSERT can guard itself, texts come to it as they are, and how
// large a statement may be. It asks through tx: the pool may have no other connection while tx holds one. If tx cannot be
// queried, the publisher uses the savepoint, which is right on every server.
func (p *Publisher) guardIn(ctx context.Context, tx any, known *atomic.Int32) (int32, error) {
	if guard := known.Load(); guard != guardUnknown {
		return guard, nil
	}
	asked, able := tx.(querier)
	if !able {
		return guardBySavepoint, nil
	}
	var guarded bool
	var charset string
	var packet int64
	if err := asked.QueryRowContext(ctx, p.sql.SelectGuard).Scan(&guarded, &charset, &packet); err != nil {
		return guardUnknown, inTx(nil, err)
	}
	if err := database.Legible(charset); err != nil {
		return guardUnknown, err
	}
	p.db.NotePacket(packet)
	guard := guardBySavepoint
	if guarded {
		guard = guardByInsert
	}
	known.Store(guard)
	return guard, nil
}
