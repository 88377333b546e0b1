package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"
)

// reshape changes the number of shards once nobody owns one.
func (k *keeper) reshape(ctx context.Context, v view) error {
	for shard, owner := range v.owners {
		switch {
		case owner == 0:
		case slices.Contains(v.relays, owner):
			return nil // its owner finishes first
		default:
			if _, err := k.exec(ctx, k.sql.ClaimShards, 0, v.generation, int64(1)<<shard, owner); err != nil {
				return fmt.Errorf("free shard %d: %w", shard, err)
			}
		}
	}
	err := k.write(ctx, func(tx *sqlx.Tx) error { return k.switchLayout(ctx, tx, v) })
	switch {
	case errors.Is(err, errOwned):
	case err != nil:
		return fmt.Errorf("change the number of shards: %w", err)
	default:
		k.log.Info("outbox: the number of shards was changed", watermill.LogFields{"shards": v.target, "before": v.shards})
	}
	return nil
}

// errOwned says that somebody was faster.
var errOwned = errors.New("a shard has an owner")

func (k *keeper) switchLayout(ctx context.Context, tx *sqlx.Tx, v view) error {
	changed, err := affected(tx.ExecContext(ctx, k.sql.SwitchLayout, v.generation, v.target))
	if err != nil {
		return err
	}
	freed, err := affected(tx.ExecContext(ctx, k.sql.DeleteShards, v.generation))
	if err != nil {
		return err
	}
	if changed != 1 || freed != int64(v.shards) {
		return errOwned
	}
	_, err = tx.ExecContext(ctx, k.sql.InsertShards, v.generation+1, v.target)
	return err
}

// prepare makes the layout where there is none yet.
func (k *keeper) prepare(ctx context.Context) error {
	n := k.config.Shards
	if _, err := k.exec(ctx, k.sql.InsertLayout, n, n); err != nil {
		return fmt.Errorf("make the layout: %w", err)
	}
	var v view
	err := k.db.QueryRowxContext(ctx, k.sql.SelectLayout).Scan(&v.generation, &v.shards, &v.target)
	if err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}
	if v.generation > 1 {
		return nil // made together with its shards
	}
	if _, err := k.exec(ctx, k.sql.InsertShards, v.generation, v.shards); err != nil {
		return fmt.Errorf("make the shards: %w", err)
	}
	return nil
}
