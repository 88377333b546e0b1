package outbox

import (
	"context"
	"fmt"
	"math/bits"
)

// shardCount is into how many shards the order keys are divided. Each has one relay at a time, so as many relays
// can work at once. It must never change: relays that divide by different numbers would send one key at once.
const shardCount = 64

// shardSet is some of the shards, a bit for each.
type shardSet uint64

const allShards = ^shardSet(0)

func (s shardSet) has(shard int) bool { return s>>shard&1 == 1 }

// owns reports whether the shard of a key is among them.
func (s shardSet) owns(hash int64) bool { return s.has(shardOf(hash)) }

func (s shardSet) size() int { return bits.OnesCount64(uint64(s)) }

// mask is the set as an argument of a statement.
func (s shardSet) mask() int64 { return int64(s) } //nolint:gosec // bits only

func shardOf(hash int64) int { return spread(hash, shardCount) }

// spread assigns a hash to one of n, as the database does. One that somebody else wrote may
// be negative.
func spread(hash int64, n int) int {
	rest := int(hash % int64(n))
	return max(rest, -rest)
}

// division is into how many shards the keys are divided.
type division struct{ generation, shards int }

// prepare finds the shards, or makes them where no relay has run yet.
func (k *keeper) prepare(ctx context.Context) (division, error) {
	if _, err := k.db.Exec(ctx, k.sql.InsertLayout, shardCount, shardCount); err != nil {
		return division{}, fmt.Errorf("make the layout: %w", err)
	}
	d, err := k.division(ctx)
	if err != nil || d.generation > 1 { // made together with its shards
		return d, err
	}
	if _, err := k.db.Exec(ctx, k.sql.InsertShards, d.generation, d.shards); err != nil {
		return d, fmt.Errorf("make the shards: %w", err)
	}
	return d, nil
}

func (d *tables) division(ctx context.Context) (now division, err error) {
	var target int // of releases that could change the number
	err = d.db.QueryRowxContext(ctx, d.sql.SelectLayout).Scan(&now.generation, &now.shards, &target)
	if err != nil {
		return now, fmt.Errorf("read into how many shards the keys are divided: %w", err)
	}
	return now, nil
}
