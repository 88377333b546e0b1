package outbox

import (
	"context"
	"fmt"
	"slices"
)

// view is what the tables say about shards and relays.
type view struct {
	there  int     // how many shards the table has
	owners []int64 // by shard
	relays []int64 // those that are alive
}

// look reads the tables, shards before relays: so an owner that is not among the relays is gone,
// and not new.
func (k *keeper) look(ctx context.Context, d division) (view, error) {
	var v view
	if err := k.forgetDead(ctx); err != nil {
		return v, fmt.Errorf("forget dead relays: %w", err)
	}
	var shards []struct {
		Shard int   `db:"shard"`
		Owner int64 `db:"owner"`
	}
	if err := k.db.SelectContext(ctx, &shards, k.sql.SelectShards, d.generation); err != nil {
		return v, fmt.Errorf("read the shards: %w", err)
	}
	if err := k.db.SelectContext(ctx, &v.relays, k.sql.SelectRelays); err != nil {
		return v, fmt.Errorf("read the relays: %w", err)
	}
	v.owners = make([]int64, d.shards)
	for _, s := range shards {
		if s.Shard < d.shards {
			v.owners[s.Shard] = s.Owner
			v.there++
		}
	}
	return v, nil
}

// forgetDead deletes relays whose lease has ended. It writes only if there are some: on SQLite a
// writer waits for all others.
func (k *keeper) forgetDead(ctx context.Context) error {
	var dead int
	if err := k.db.GetContext(ctx, &dead, k.sql.CountExpired); err != nil || dead == 0 {
		return err
	}
	_, err := k.db.Exec(ctx, k.sql.DeleteExpired)
	return err
}

// owned returns the shards that a relay owns.
func (v view) owned(token int64) (owned shardSet) {
	for shard, owner := range v.owners {
		if owner == token {
			owned |= 1 << shard
		}
	}
	return owned
}

// share returns how many shards a relay should own.
func (v view) share(token int64) int {
	share := len(v.owners) / len(v.relays)
	if slices.Index(v.relays, token) < len(v.owners)%len(v.relays) {
		share++
	}
	return share
}

// vacant returns at most so many shards that no living relay owns, by their last owner; 0 is nobody.
func (v view) vacant(most int) map[int64]shardSet {
	vacant := make(map[int64]shardSet)
	for shard := len(v.owners) - 1; shard >= 0 && most > 0; shard-- {
		owner := v.owners[shard]
		if owner == 0 || !slices.Contains(v.relays, owner) {
			vacant[owner] |= 1 << shard
			most--
		}
	}
	return vacant
}
