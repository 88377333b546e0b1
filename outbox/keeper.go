package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"time"
)

// assignment is which shards of which layout a relay has.
type assignment struct {
	generation int
	count      int
	mask       int64 // a bit for each shard
}

func (a assignment) shard(hash int64) int { return spread(hash, a.count) }

// spread assigns a hash to one of n, as the database does. One that somebody else wrote may
// be negative.
func spread(hash int64, n int) int {
	rest := int(hash % int64(n))
	return max(rest, -rest)
}

func (a assignment) owns(hash int64) bool {
	return a.count > 0 && a.mask>>a.shard(hash)&1 == 1
}

func (a assignment) size() int { return bits.OnesCount64(uint64(a.mask)) } //nolint:gosec // bits only

// errLeaseLost says that the relay was silent for too long.
var errLeaseLost = errors.New("the lease was lost")

// keeper holds a relay's lease and its fair share of the shards. It gives up a shard only
// when the pump has nothing of it in hand.
type keeper struct {
	*Relay
	lease *lease
	held  assignment // as the database has it

	extended time.Time // the lease, last

	asked   int        // number of the last order
	changes chan order // to the pump; the latest counts
	given   chan order // which the pump has carried out
}

// order is what the pump may work on.
type order struct {
	assignment
	number int
}

func newKeeper(r *Relay) *keeper {
	return &keeper{
		Relay: r, lease: newLease(),
		changes: make(chan order, 1), given: make(chan order, 1),
	}
}

// beginTimeout bounds how long a relay waits for the database before it asks anew.
const beginTimeout = 10 * time.Second

// begin joins the other relays, or makes the layout if there are none.
func (k *keeper) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	if err := k.prepare(ctx); err != nil {
		return err
	}
	return k.join(ctx)
}

// join registers the relay.
func (k *keeper) join(ctx context.Context) error {
	sent := time.Now()
	name := cmp.Or(k.config.Name, strconv.FormatInt(k.lease.token, 10))
	_, err := k.exec(ctx, k.sql.InsertRelay, k.lease.token, name, k.config.Lease.Microseconds())
	if err != nil {
		return fmt.Errorf("register the relay: %w", err)
	}
	k.extended = sent
	k.lease.extend(sent, k.config.Lease)
	return nil
}

// leave gives everything up at once.
func (k *keeper) leave(ctx context.Context) error {
	k.lease.end()
	_, err := k.exec(ctx, k.sql.FreeShards, k.lease.token)
	if err == nil {
		_, err = k.exec(ctx, k.sql.DeleteRelay, k.lease.token)
	}
	if err != nil {
		return fmt.Errorf("give up the shards: %w", err)
	}
	return nil
}

// How long a keeper rests at most between two looks at the tables: for so long shards that
// another relay gave up go unnoticed, and so does a change of the layout.
const (
	restSettled   = time.Second
	restUnsettled = 500 * time.Millisecond
)

// run beats until ctx ends, or returns [errLeaseLost].
func (k *keeper) run(ctx context.Context) error {
	for {
		settled := false
		err := k.await("the keeper of the shards", func() (err error) { settled, err = k.beat(ctx); return err })
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case errors.Is(err, errLeaseLost) || err != nil && !k.lease.valid():
			return fmt.Errorf("%w: %w", errLeaseLost, err)
		case err != nil:
			k.log.Error("outbox: the relay's lease could not be extended; tried again", explain(err), nil)
		}
		pause := restUnsettled
		if settled {
			pause = restSettled
		}
		if !k.rest(ctx, min(pause, k.config.Lease/3)) {
			return nil
		}
	}
}

// rest waits until it is time to beat again: after the pause, or when shards were given
// up. It reports false when ctx ended.
func (k *keeper) rest(ctx context.Context, pause time.Duration) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-over.C:
			return true
		case done := <-k.given:
			if done.number != k.asked {
				continue // since then the pump may have taken up a shard again
			}
			before := k.held
			err := k.await("the giving up of shards", func() error { return k.free(ctx, done.assignment) })
			if err != nil && ctx.Err() == nil {
				k.log.Error("outbox: shards could not be given up; tried again", explain(err), nil)
			}
			if k.held != before {
				return true
			}
		}
	}
}

// view is what the tables say of shards and relays.
type view struct {
	generation, shards, target int

	owners []int64 // by shard
	relays []int64 // that are alive
}

// beat extends the lease, where it is time, and takes or gives up shards. It reports whether the relay has
// what it should have.
func (k *keeper) beat(ctx context.Context) (settled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.config.Lease/2)
	defer cancel()
	if time.Since(k.extended) >= k.config.Lease/3 {
		if err := k.extend(ctx); err != nil {
			return false, err
		}
	}
	v, err := k.look(ctx)
	if err != nil {
		return false, err
	}
	if !k.agrees(v) {
		return false, errLeaseLost
	}
	k.catchUp(v)
	if v.target != v.shards {
		k.work(assignment{generation: v.generation, count: v.shards})
		return false, k.reshape(ctx, v)
	}
	return k.balance(ctx, v)
}

func (k *keeper) extend(ctx context.Context) error {
	sent := time.Now()
	n, err := k.exec(ctx, k.sql.BeatRelay, k.config.Lease.Microseconds(), k.lease.token)
	if err != nil {
		return err
	}
	if n == 0 {
		return errLeaseLost
	}
	k.extended = sent
	k.lease.extend(sent, k.config.Lease)
	return nil
}

// look reads the tables. Shards come before relays: then whoever owns a shard and is not
// among the relays is gone, and not new.
func (k *keeper) look(ctx context.Context) (view, error) {
	var v view
	if err := k.forgetDead(ctx); err != nil {
		return v, fmt.Errorf("forget dead relays: %w", err)
	}
	err := k.db.QueryRowxContext(ctx, k.sql.SelectLayout).Scan(&v.generation, &v.shards, &v.target)
	if err != nil {
		return v, fmt.Errorf("read the layout: %w", err)
	}
	var shards []struct {
		Shard int   `db:"shard"`
		Owner int64 `db:"owner"`
	}
	if err := k.db.SelectContext(ctx, &shards, k.sql.SelectShards, v.generation); err != nil {
		return v, fmt.Errorf("read the shards: %w", err)
	}
	if err := k.db.SelectContext(ctx, &v.relays, k.sql.SelectRelays); err != nil {
		return v, fmt.Errorf("read the relays: %w", err)
	}
	v.owners = make([]int64, v.shards)
	for _, s := range shards {
		if s.Shard < v.shards {
			v.owners[s.Shard] = s.Owner
		}
	}
	return v, nil
}

// forgetDead deletes relays whose lease is over. It writes only if there are some: on
// SQLite who writes waits for all others.
func (k *keeper) forgetDead(ctx context.Context) error {
	var dead int
	if err := k.db.GetContext(ctx, &dead, k.sql.CountExpired); err != nil || dead == 0 {
		return err
	}
	_, err := k.exec(ctx, k.sql.DeleteExpired)
	return err
}

// agrees reports whether the tables still say that the relay has what it holds.
func (k *keeper) agrees(v view) bool {
	if !slices.Contains(v.relays, k.lease.token) {
		return false
	}
	if k.held.mask != 0 && k.held.generation != v.generation {
		return false
	}
	for shard := range k.held.count {
		if k.held.mask>>shard&1 == 1 && v.owners[shard] != k.lease.token {
			return false
		}
	}
	return true
}

// catchUp notes what the relay owns by the tables: the answer to a claim may have got lost.
func (k *keeper) catchUp(v view) {
	if k.held.generation != v.generation {
		k.held = assignment{generation: v.generation, count: v.shards}
	}
	for shard, owner := range v.owners {
		if owner == k.lease.token {
			k.held.mask |= 1 << shard
		}
	}
}

// balance works towards a fair share.
func (k *keeper) balance(ctx context.Context, v view) (settled bool, err error) {
	rank := slices.Index(v.relays, k.lease.token)
	share := v.shards / len(v.relays)
	if rank < v.shards%len(v.relays) {
		share++
	}
	for shard := v.shards - 1; shard >= 0 && k.held.size() < share; shard-- {
		owner := v.owners[shard]
		if owner != 0 && slices.Contains(v.relays, owner) {
			continue
		}
		n, err := k.exec(ctx, k.sql.ClaimShards, k.lease.token, v.generation, int64(1)<<shard, owner)
		if err != nil {
			return false, fmt.Errorf("take shard %d: %w", shard, err)
		}
		if n == 1 {
			k.held.mask |= 1 << shard
		}
	}
	keep := k.held
	for shard := 0; keep.size() > share; shard++ {
		keep.mask &^= 1 << shard
	}
	k.work(keep)
	return k.held.size() == share, nil
}

// work tells the pump what it may work on.
func (k *keeper) work(a assignment) {
	select {
	case <-k.changes: // an older one that nobody took
	default:
	}
	k.asked++
	k.changes <- order{a, k.asked}
}

// free gives up what the pump no longer works on.
func (k *keeper) free(ctx context.Context, left assignment) error {
	ctx, cancel := context.WithTimeout(ctx, k.config.Lease/2)
	defer cancel()
	for shard := range k.held.count {
		bit := int64(1) << shard
		if k.held.mask&bit == 0 || left.mask&bit != 0 {
			continue
		}
		if _, err := k.exec(ctx, k.sql.ClaimShards, 0, k.held.generation, bit, k.lease.token); err != nil {
			return fmt.Errorf("give up shard %d: %w", shard, err)
		}
		k.held.mask &^= bit
	}
	return nil
}
