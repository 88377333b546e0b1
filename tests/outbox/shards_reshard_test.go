package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The number of shards goes down and up while three relays are at work. All is sent once,
// and of each key in order.
func TestReshardUnderLoad(t *testing.T) {
	testdb.Turn(t, 1, loads)
	t.Parallel()
	testdb.Some(t, 1, testdb.With(newTown, func(t *testing.T, o *town) {
		var members []*member
		for n := range 3 {
			members = append(members, o.member(fmt.Sprintf("relay %d", n)))
		}
		o.shared(8, members...)
		stop := o.load(o.traffic, 2)
		for n, shards := range []int{3, 12, 1, 9} {
			began := time.Now()
			require.NoError(t, members[n%3].Reshard(t.Context(), shards))
			t.Logf("%d shards after %v", shards, time.Since(began).Round(10*time.Millisecond))
			o.flows(20)
		}
		o.shared(9, members...)
		stop()
		messages, _ := o.check()
		t.Logf("%d messages", messages)
		o.onceEach()
	}))
}

// Relays join while the number of shards changes.
func TestReshardWhileRelaysJoin(t *testing.T) {
	testdb.Turn(t, 1, loads)
	t.Parallel()
	testdb.Some(t, 1, testdb.With(newTown, func(t *testing.T, o *town) {
		first := o.member("relay 0")
		members := []*member{first}
		o.shared(8, first)
		stop := o.load(o.traffic, 2)
		for n := range 3 {
			var changed sync.WaitGroup
			changed.Go(func() { assert.NoError(t, first.Reshard(t.Context(), 5+n)) })
			members = append(members, o.member(fmt.Sprintf("relay %d", n+1)))
			changed.Wait()
		}
		o.shared(7, members...)
		stop()
		o.check()
		o.onceEach()
	}))
}

// A relay that died still holds a lease, and a shard: the number changes when its lease is
// over, and not before.
func TestReshardWaitsForTheLeaseOfTheDead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		m := p.member("one")
		p.shared(8, m)
		began, lease := time.Now(), 2*time.Second
		for _, statement := range []string{
			fmt.Sprintf(`INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (1, 'dead', 0, %d)`,
				began.Add(lease).UnixMicro()),
			`UPDATE millrace_outbox_shards SET owner = 1 WHERE shard = 0 AND owner = 0`,
		} {
			db.Do(t, statement)
		}
		rig.Eventually(p, "the living gives up what the dead could have", func() bool { return m.seen.last() == 4 })
		rig.Eventually(p, "the dead has a shard", func() bool {
			db.Do(t, `UPDATE millrace_outbox_shards SET owner = 1 WHERE shard = 0 AND owner = 0`)
			return p.owners()["dead"] == 1
		})
		require.NoError(t, m.Reshard(t.Context(), 5))
		assert.GreaterOrEqual(t, time.Since(began), lease)
		p.shared(5, m)
		_, all := p.spread(16, 1)
		p.broker.awaitAll(t, all)
	})
}

// Of two calls at once one wins; the other is told so, or had its number for a while.
func TestTwoReshardsAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		members := []*member{p.member("first"), p.member("second")}
		p.shared(8, members...)
		for range 3 {
			errs := make([]error, 2)
			var both sync.WaitGroup
			for n, shards := range []int{3, 12} {
				both.Go(func() { errs[n] = members[n].Reshard(t.Context(), shards) })
			}
			both.Wait()
			shards := db.Count(t, `SELECT shards FROM millrace_outbox_layout`)
			t.Logf("%d shards; %v", shards, errs)
			switch shards {
			case 3:
				require.NoError(t, errs[0])
			case 12:
				require.NoError(t, errs[1])
			default:
				require.Contains(t, []int{3, 12}, shards)
			}
			p.shared(shards, members...)
		}
		_, all := p.spread(32, 1)
		p.broker.awaitAll(t, all)
		p.onceEach()
	})
}

// The first relay comes between two statements of Reshard, which then says that there was
// none, or waits for its own number.
func TestReshardWhileTheFirstRelayComes(t *testing.T) {
	t.Parallel()
	for at := range 3 {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			p := newPost(t, testdb.On(t, "sqlite"))
			operator, statements := p.prepare("operator"), 0
			operator.db.Set(on(func(context.Context) error {
				if statements++; statements == at+1 {
					p.shared(8, p.member("first")) //nolint:contextcheck // NewRelay takes none
				}
				return nil
			}))
			if err := operator.Reshard(t.Context(), 5); err != nil {
				require.ErrorContains(t, err, "run a relay first")
			}
			assert.Positive(t, statements)
		})
	}
}

func TestReshardRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite"))
	relay := p.prepare("one").Relay
	for _, shards := range []int{-1, 0, outbox.MaxShards + 1} {
		require.ErrorContains(t, relay.Reshard(t.Context(), shards), "is not between 1 and 60")
	}
	require.ErrorContains(t, relay.Reshard(t.Context(), 5), "run a relay first")
}
