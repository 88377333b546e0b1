package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// Layout says into which shards the order keys are divided, and which relay sends which.
type Layout struct {
	Shards []Shard
	Relays []RelayLease
	At     time.Time // by the database's clock; zero if there is no relay
}

// Shard is one part of the order keys.
type Shard struct {
	Number int
	Owner  int64  // token of the relay that owns it, 0 for none
	Relay  string // name of that relay, where it is known
	Alive  bool   // that relay has a lease
}

// RelayLease is a relay and its lease.
type RelayLease struct {
	Token     int64
	Name      string // RelayConfig.Name
	StartedAt time.Time
	Until     time.Time // end of its lease, by the database's clock
	Alive     bool      // the lease has not ended
	Shards    int       // how many it owns

	BrokerError    string    // while nothing gets through to the broker, the last error, without passwords and the payload
	BrokerOutSince time.Time // zero: messages get through, or there are none
}

// Unowned returns how many shards no living relay owns: nobody sends their messages.
func (l Layout) Unowned() int {
	unowned := 0
	for _, s := range l.Shards {
		if !s.Alive {
			unowned++
		}
	}
	return unowned
}

// Shards says which relay owns which shard. There are no shards before the first relay has run.
// Shards reads one table after the other: a shard that one relay hands over to another in
// between may be seen with neither.
func (p *Publisher) Shards(ctx context.Context) (Layout, error) {
	l, err := p.layout(ctx)
	if err != nil {
		return Layout{}, fmt.Errorf("outbox: shards: %w", database.Explain(err))
	}
	return l, nil
}

// layout reads shards before relays, as [keeper.look] does: so an owner that is not among the
// relays is gone, and not new.
func (d *tables) layout(ctx context.Context) (l Layout, err error) {
	db := d.db.Reader(ctx)
	now, err := d.division(ctx, db)
	if errors.Is(err, sql.ErrNoRows) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	var owners []struct {
		Shard int   `db:"shard"`
		Owner int64 `db:"owner"`
	}
	if err := sqlx.SelectContext(ctx, db, &owners, d.sql.SelectShards, now.generation); err != nil {
		return l, fmt.Errorf("read the shards: %w", err)
	}
	var relays []struct {
		Token     int64          `db:"token"`
		Name      string         `db:"name"`
		StartedAt int64          `db:"started_at"`
		Until     int64          `db:"until"`
		Error     sql.NullString `db:"broker_error"`
		OutSince  sql.NullInt64  `db:"broker_out_since"`
		Now       int64          `db:"now"`
	}
	if err := sqlx.SelectContext(ctx, db, &relays, d.sql.ListRelays); err != nil {
		return l, fmt.Errorf("read the relays: %w", err)
	}
	at := make(map[int64]int) // relays by their tokens
	for i, r := range relays {
		at[r.Token], l.At = i, time.UnixMicro(r.Now).UTC()
		lease := RelayLease{
			Token: r.Token, Name: r.Name, Alive: r.Until > r.Now, BrokerError: r.Error.String,
			StartedAt: time.UnixMicro(r.StartedAt).UTC(), Until: time.UnixMicro(r.Until).UTC(),
		}
		if r.OutSince.Valid {
			lease.BrokerOutSince = time.UnixMicro(r.OutSince.Int64).UTC()
		}
		l.Relays = append(l.Relays, lease)
	}
	for _, o := range owners {
		s := Shard{Number: o.Shard, Owner: o.Owner}
		if i, known := at[o.Owner]; known {
			s.Relay, s.Alive = l.Relays[i].Name, l.Relays[i].Alive
			l.Relays[i].Shards++
		}
		l.Shards = append(l.Shards, s)
	}
	return l, nil
}
