package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/millrace-go/millrace/internal/database"
)

// errLeaseLost says that the relay did not extend its lease in time.
var errLeaseLost = errors.New("the relay did not extend its lease in time and lost it")

// errCutOff says that it did so before it knew the result of every message on its way.
var errCutOff = errors.New("messages were on their way, and may be sent again, with the same UUIDs")

// keeper holds a relay's lease and its fair share of the shards. It gives up a shard only
// when the pump has nothing of it in hand.
type keeper struct {
	*Relay
	lease      *lease
	once       bool     // the pump works once
	generation int      // of the shards
	owned      shardSet // by the database

	extended time.Time // when the lease was last extended
	replaced time.Time // when the shards of an earlier release were replaced; zero for never

	broker  atomic.Pointer[brokerOut] // what the pump knows; nil: messages get through
	noted   *brokerOut                // what the table says
	notedAt time.Time                 // when the log last said that it cannot be written

	asked   int        // number of the last order
	changes chan order // orders to the pump; the latest counts
	given   chan order // orders that the pump has carried out
}

// order tells the pump which shards it may work on.
type order struct {
	shards shardSet
	number int
}

func newKeeper(r *Relay) *keeper {
	return &keeper{
		Relay: r, lease: newLease(),
		changes: make(chan order, 1), given: make(chan order, 1),
	}
}

// beginTimeout bounds how long a relay waits for the database before it starts over.
const beginTimeout = 10 * time.Second

// begin joins the other relays, and makes the shards if there are none.
func (k *keeper) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	d, err := k.prepare(ctx)
	if err != nil {
		return err
	}
	if d.shards != shardCount {
		return k.replace(ctx, d)
	}
	k.generation = d.generation
	return k.join(ctx)
}

// join registers the relay. A relay that is told to stop waits for the answer: what is cut off may reach the database
// after it was taken back.
func (k *keeper) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginTimeout)
	defer cancel()
	sent := time.Now()
	name := cmp.Or(k.config.Name, strconv.FormatInt(k.lease.token, 10))
	_, err := k.db.Exec(ctx, k.sql.InsertRelay, k.lease.token, name, k.config.Lease.Microseconds())
	if err != nil {
		k.unjoin(ctx)
		return fmt.Errorf("register the relay: %w", err)
	}
	k.extended = sent
	k.lease.extend(sent, k.config.Lease)
	return nil
}

// unjoin takes back a registration of which the answer is missing: others would leave the relay a share.
func (k *keeper) unjoin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = k.db.Exec(ctx, k.sql.DeleteRelay, k.lease.token) // or else it ends with the lease
}

// leave gives up the shards and the lease. Shortly after [keeper.replace] it does not: there the
// shards wait for the lease to end.
func (k *keeper) leave(ctx context.Context) error {
	k.lease.end()
	if time.Since(k.replaced) < k.config.Lease {
		return nil
	}
	_, err := k.db.Exec(ctx, k.sql.FreeShards, k.lease.token)
	if err == nil {
		_, err = k.db.Exec(ctx, k.sql.DeleteRelay, k.lease.token)
	}
	if err != nil {
		return fmt.Errorf("give up the shards: %w", err)
	}
	return nil
}

// How long a keeper rests at most between two looks at the tables. Shards that another relay
// gives up go unnoticed for as long.
const (
	restSettled   = time.Second
	restUnsettled = 500 * time.Millisecond
)

// run beats until ctx ends, and then returns nil, or until the lease is lost or RelayBatch gives up.
func (k *keeper) run(ctx context.Context) error {
	began := time.Now()
	for {
		settled := false
		err := k.await("the keeper of the shards", func() (err error) { settled, err = k.beat(ctx); return err })
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case errors.Is(err, errLeaseLost):
			return err
		case err != nil && !k.lease.valid():
			return fmt.Errorf("%w: %w", errLeaseLost, err)
		case err != nil && k.once && k.asked == 0 && time.Since(began) >= k.config.Drain: // the pump waits for shards
			return database.Explain(err)
		case err != nil:
			k.log.Error("outbox: the relay could not extend its lease; retrying", database.Explain(err), nil)
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

// rest waits until it is time to beat again: after the pause, when the keeper has given up shards,
// or when the pump doubts the lease. It reports false when ctx has ended.
func (k *keeper) rest(ctx context.Context, pause time.Duration) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-over.C:
			return true
		case <-k.lease.doubted:
			return true
		case done := <-k.given:
			if done.number != k.asked {
				continue // the pump may have taken up a shard again since
			}
			before := k.owned
			err := k.await("the giving up of shards", func() error { return k.free(ctx, done.shards) })
			if err != nil && ctx.Err() == nil {
				k.log.Error("outbox: the relay could not give up shards; retrying", database.Explain(err), nil)
			}
			if err == nil && k.owned != before {
				return true
			}
		}
	}
}

// beat extends the lease when it is time, and takes or gives up shards. It reports whether the
// relay owns its share.
func (k *keeper) beat(ctx context.Context) (settled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(k.config.Lease/2, lookTimeout))
	defer cancel()
	if time.Since(k.extended) >= k.config.Lease/3 {
		if err := k.extend(ctx); err != nil {
			return false, err
		}
	}
	k.note(ctx)
	for {
		doubts := k.lease.doubts.Load()
		v, err := k.look(ctx, division{k.generation, shardCount})
		if err != nil {
			return false, err
		}
		if !k.agrees(v) {
			return false, errLeaseLost
		}
		k.lease.resolved.Store(doubts)
		k.catchUp(v)
		share := v.share(k.lease.token)
		all, err := k.take(ctx, v.vacant(share-k.owned.size()))
		if err != nil {
			return false, err
		}
		if all {
			k.keep(share)
			return k.owned.size() == share, nil
		}
	}
}

func (k *keeper) extend(ctx context.Context) error {
	sent := time.Now()
	n, err := k.db.Exec(ctx, k.sql.BeatRelay, k.config.Lease.Microseconds(), k.lease.token)
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

// agrees reports whether the tables still say that the relay owns its shards.
func (k *keeper) agrees(v view) bool {
	if v.there != shardCount || !slices.Contains(v.relays, k.lease.token) {
		return false
	}
	return k.owned&^v.owned(k.lease.token) == 0
}

// catchUp notes what the relay owns by the tables: it may have missed the answer to a claim.
func (k *keeper) catchUp(v view) { k.owned |= v.owned(k.lease.token) }

// take takes vacant shards, and reports whether it got all of them: another relay may have been
// faster.
func (k *keeper) take(ctx context.Context, vacant map[int64]shardSet) (all bool, err error) {
	for owner, some := range vacant {
		n, err := k.db.Exec(ctx, k.sql.ClaimShards, k.lease.token, k.generation, some.mask(), owner)
		if err != nil {
			return false, fmt.Errorf("take shards: %w", err)
		}
		if n != int64(some.size()) {
			return false, nil
		}
		k.owned |= some
	}
	return true, nil
}

// keep has the pump work on as many of the relay's shards as its share has.
func (k *keeper) keep(share int) {
	keep := k.owned
	for shard := 0; keep.size() > share; shard++ {
		keep &^= 1 << shard
	}
	k.work(keep)
}

// work tells the pump what it may work on.
func (k *keeper) work(shards shardSet) {
	select {
	case <-k.changes: // an older order that the pump has not read
	default:
	}
	k.asked++
	k.changes <- order{shards, k.asked}
}

// free gives up the shards that the pump no longer works on. After a failure the tables tell whether they are gone.
func (k *keeper) free(ctx context.Context, left shardSet) error {
	ctx, cancel := context.WithTimeout(ctx, min(k.config.Lease/2, lookTimeout))
	defer cancel()
	gone := k.owned &^ left
	if gone == 0 {
		return nil
	}
	k.owned &= left
	if _, err := k.db.Exec(ctx, k.sql.ClaimShards, 0, k.generation, gone.mask(), k.lease.token); err != nil {
		return fmt.Errorf("give up shards: %w", err)
	}
	return nil
}
