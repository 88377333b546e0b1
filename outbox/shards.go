package outbox

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// shardCount is into how many shards the order keys are divided. Each shard has one relay at a
// time, so at most as many relays work at once. It must never change: two relays with different
// numbers would send the same key at once.
const shardCount = 64

// shardSet is a set of shards, a bit for each.
type shardSet uint64

const allShards = ^shardSet(0)

func (s shardSet) has(shard int) bool { return s>>shard&1 == 1 }

// owns reports whether the set has the shard of a key.
func (s shardSet) owns(hash int64) bool { return s.has(shardOf(hash)) }

func (s shardSet) size() int { return bits.OnesCount64(uint64(s)) }

// mask is the set as a statement's argument.
func (s shardSet) mask() int64 { return int64(s) } //nolint:gosec // bits only

func shardOf(hash int64) int { return spread(hash, shardCount) }

// spread assigns a hash to one of n, as the database does. A hash that another program wrote may
// be negative.
func spread(hash int64, n int) int {
	rest := int(hash % int64(n))
	return max(rest, -rest)
}

// division says into how many shards the keys are divided.
type division struct{ generation, shards int }

// prepare finds the shards, or makes them where no relay has run yet.
func (k *keeper) prepare(ctx context.Context) (division, error) {
	if _, err := k.db.Exec(ctx, k.sql.InsertLayout, shardCount, shardCount); err != nil {
		return division{}, fmt.Errorf("make the layout: %w", err)
	}
	d, err := k.division(ctx, k.db)
	if err != nil || d.generation > 1 { // a later generation was made together with its shards
		return d, err
	}
	if _, err := k.db.Exec(ctx, k.sql.InsertShards, d.generation, d.shards); err != nil {
		return d, fmt.Errorf("make the shards: %w", err)
	}
	return d, nil
}

func (d *tables) division(ctx context.Context, db sqlx.QueryerContext) (now division, err error) {
	var target int // only earlier releases could change the number
	var charset string
	err = db.QueryRowxContext(ctx, d.sql.SelectLayout).Scan(&now.generation, &now.shards, &target, &charset)
	if err != nil {
		return now, fmt.Errorf("read the number of shards: %w", err)
	}
	return now, database.Legible(charset)
}
