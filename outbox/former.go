package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"
	"github.com/millrace-go/millrace/internal/database"
)

// Relays of earlier releases divided the keys into a number of shards that users could set and
// change. See docs/decisions/relay-shards.md.

// errFormer says that a relay of an earlier release still runs.
var errFormer = errors.New("relays of an earlier release still run, which divide the keys into another number of shards: " +
	"this one begins when the last of them has stopped")

// replace divides the keys into today's number of shards, once no living relay owns a shard of
// the former division.
//
// A relay that has just read the former shards may still try to take one. So this relay takes
// them all, and stays registered until the lease of any such relay has ended.
func (k *keeper) replace(ctx context.Context, former division) error {
	v, err := k.look(ctx, former)
	if err != nil {
		return err
	}
	alive := func(owner int64) bool { return slices.Contains(v.relays, owner) }
	if slices.ContainsFunc(v.owners, alive) {
		return errFormer
	}
	if err := k.join(ctx); err != nil {
		return err
	}
	err = k.db.Write(ctx, func(tx *sqlx.Tx) error { return k.divide(ctx, tx, former, v) })
	if errors.Is(err, errFormer) {
		_, err := k.db.Exec(ctx, k.sql.DeleteRelay, k.lease.token)
		return errors.Join(errFormer, err)
	}
	if err != nil { // the commit may have succeeded: this relay's lease ends by itself
		return fmt.Errorf("replace the shards of an earlier release: %w", err)
	}
	k.replaced = time.Now()
	k.generation = former.generation + 1
	k.log.Info("outbox: the shards of an earlier release were replaced",
		watermill.LogFields{"shards": shardCount, "before": former.shards})
	return nil
}

func (k *keeper) divide(ctx context.Context, tx *sqlx.Tx, former division, v view) error {
	changed, err := database.Affected(tx.ExecContext(ctx, k.sql.SwitchLayout, shardCount, shardCount, former.generation))
	if err != nil {
		return err
	}
	taken := int64(0)
	for owner, some := range v.vacant(former.shards) {
		n, err := database.Affected(tx.ExecContext(ctx, k.sql.ClaimShards, k.lease.token, former.generation, some.mask(), owner))
		if err != nil {
			return err
		}
		taken += n
	}
	if changed != 1 || taken != int64(former.shards) {
		return errFormer
	}
	if _, err := tx.ExecContext(ctx, k.sql.InsertShards, former.generation+1, shardCount); err != nil {
		return err
	}
	// Last, so that the lease begins with the commit.
	extended, err := database.Affected(tx.ExecContext(ctx, k.sql.BeatRelay, k.config.Lease.Microseconds(), k.lease.token))
	if err == nil && extended != 1 {
		err = errLeaseLost
	}
	return err
}
