package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/leasetest"
)

// The same bodies, where time passes at once.
func TestDeduplicateInMemoryInABubble(t *testing.T) {
	for _, b := range leasetest.Bodies {
		t.Run(b.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &lease.Memory{}
				b.Run(t, func(*testing.T) lease.Store { return store })
			})
		})
	}
}

func TestDeduplicateDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claims := memoryLeases()
		leave, runs := make(chan struct{}), 0
		h := millrace.Deduplicate{Claims: claims, Consumer: "mailer"}.Middleware(
			func(*message.Message) ([]*message.Message, error) { runs++; <-leave; return nil, nil })
		done := make(chan error)
		go func() { done <- send(h, "a") }()
		synctest.Wait()

		began := time.Now()
		require.ErrorIs(t, send(h, "a"), inbox.ErrInProgress)
		require.Equal(t, 5*time.Second, time.Since(began), "Wait")

		key := lease.Key{Consumer: "mailer", ID: "\x02a"}
		state, err := claims.Store().Acquire(t.Context(), key, 1, time.Hour)
		require.NoError(t, err)
		require.Equal(t, lease.State{Status: lease.Held, Remaining: time.Minute - 5*time.Second}, state, "Lease")

		time.Sleep(time.Hour) // in the bubble: the heartbeat goes on
		state, err = claims.Store().Acquire(t.Context(), key, 1, time.Hour)
		require.NoError(t, err)
		require.Equal(t, lease.Held, state.Status)

		close(leave)
		require.NoError(t, <-done)
		time.Sleep(7*24*time.Hour - 1)
		require.NoError(t, send(h, "a"))
		require.Equal(t, 1, runs, "Retention")
		time.Sleep(time.Nanosecond)
		require.NoError(t, send(h, "a"))
		require.Equal(t, 2, runs, "Retention")
	})
}

func send(h message.HandlerFunc, id string) error {
	_, err := h(message.NewMessage(id, nil))
	return err
}

// Copies in one process wait for each other without asking the store.
func TestDeduplicateWakesTheWaitingCopies(t *testing.T) {
	for _, result := range []error{nil, errors.New("boom")} {
		synctest.Test(t, func(t *testing.T) {
			store := &counting{Store: &lease.Memory{}}
			end, runs := make(chan error), 0
			h := millrace.Deduplicate{Claims: inbox.NewLeases(store, inbox.LeasesConfig{}), Consumer: "mailer"}.Middleware(
				func(*message.Message) ([]*message.Message, error) {
					if runs++; runs == 1 {
						return nil, <-end
					}
					return nil, nil
				})
			var copies sync.WaitGroup
			for range 10 {
				copies.Go(func() { _ = send(h, "a") })
			}
			synctest.Wait()
			require.Equal(t, 1, runs)
			require.Equal(t, 1, store.acquires)
			began := time.Now()
			end <- result
			copies.Wait()
			require.Zero(t, time.Since(began), "a copy was not woken")
			want := 1
			if result != nil {
				want = 2
			}
			require.Equal(t, want, runs)
			require.Equal(t, want, store.acquires)
		})
	}
}

type counting struct {
	lease.Store
	acquires int
}

func (c *counting) Acquire(ctx context.Context, key lease.Key, token int64, d time.Duration) (lease.State, error) {
	c.acquires++
	return c.Store.Acquire(ctx, key, token, d)
}

// A handler whose d is lost learns it from its context.
func TestDeduplicateTellsTheHandlerThatItsLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lease.Memory{}
		h := millrace.Deduplicate{
			Claims: inbox.NewLeases(losing{store}, inbox.LeasesConfig{}), Consumer: "mailer",
		}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return nil, context.Cause(msg.Context())
		})
		began := time.Now()
		require.ErrorIs(t, send(h, "a"), inbox.ErrLeaseLost)
		require.Equal(t, 20*time.Second, time.Since(began))
	})
}

// A handler that goes on without its lease fails before its messages are published, whether a
// heartbeat found the lease lost or nobody has asked yet.
func TestDeduplicatePublishesNothingWithoutItsLease(t *testing.T) {
	for _, lasting := range []time.Duration{0, 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			seen := &sightings{}
			h := millrace.Deduplicate{
				Claims:   inbox.NewLeases(losing{&lease.Memory{}}, inbox.LeasesConfig{Observers: []inbox.Observer{seen}}),
				Consumer: "mailer",
			}.Middleware(func(*message.Message) ([]*message.Message, error) {
				time.Sleep(lasting)
				return message.Messages{message.NewMessage("b", nil)}, nil
			})
			msg := message.NewMessage("a", nil)
			produced, err := h(msg)
			msg.Nack() // as a router does after an error
			require.ErrorIs(t, err, inbox.ErrLeaseLost, "after %v", lasting)
			require.Empty(t, produced)
			require.Equal(t, 1, seen.doubleEffects)
		})
	}
}

// A middleware outside that hands on a copy gets the ack in its place. Deduplicate says so, and does not wait for ever.
func TestDeduplicateOfACopyThatNobodyAnswers(t *testing.T) {
	for _, ends := range []bool{true, false} { // the context of the copy, once the message is acked
		synctest.Test(t, func(t *testing.T) {
			log, runs := watermill.NewCaptureLogger(), 0
			h := millrace.Deduplicate{
				Claims: inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{Logger: log}), Consumer: "mailer",
			}.Middleware(func(*message.Message) ([]*message.Message, error) {
				runs++
				return message.Messages{message.NewMessage("b", nil)}, nil
			})
			copied, again := message.NewMessage("a", nil), message.NewMessage("a", nil)
			defer copied.Ack()
			if ends {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				copied.SetContext(ctx)
			}
			_, err := h(copied)
			require.NoError(t, err)
			time.Sleep(time.Hour)
			require.Len(t, log.Captured()[watermill.ErrorLogLevel], 1)
			_, err = h(again)
			require.NoError(t, err)
			require.Equal(t, 2, runs)
			again.Ack()
			synctest.Wait()
			require.Len(t, log.Captured()[watermill.ErrorLogLevel], 1)
		})
	}
}

type losing struct{ lease.Store }

func (losing) Extend(context.Context, lease.Key, int64, time.Duration) error {
	return inbox.ErrLeaseLost
}

// A store that is down gets one probe at a time, and deliveries are held back.
func TestDeduplicateHoldsDeliveriesBackWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &down{counting: counting{Store: &lease.Memory{}}, isDown: true}
		h, runs := wrapped(millrace.Deduplicate{
			Claims: inbox.NewLeases(store, inbox.LeasesConfig{}), Consumer: "mailer",
		})
		const redeliveries = 100
		began := time.Now()
		for range redeliveries {
			require.ErrorIs(t, send(h, "a"), inbox.ErrUnavailable)
		}
		require.Greater(t, time.Since(began), redeliveries*time.Second, "a storm of nacks")
		store.isDown = false
		require.NoError(t, send(h, "a"))
		require.Equal(t, 1, *runs)
	})
}

type down struct {
	counting
	isDown bool
}

func (d *down) Acquire(ctx context.Context, key lease.Key, token int64, lasting time.Duration) (lease.State, error) {
	if d.isDown {
		return lease.State{}, inbox.ErrUnavailable
	}
	return d.counting.Acquire(ctx, key, token, lasting)
}

// What the store refuses, or Deduplicate itself, and what has a step in doubt goes back to its source after pauses that grow.
func TestDeduplicatePausesBeforeItNacksWhatIsRefused(t *testing.T) {
	broken := millrace.Deduplicate{Claims: inbox.NewLeases(refusing{&lease.Memory{}}, inbox.LeasesConfig{}), Consumer: "mailer"}
	twice := millrace.Deduplicate{Claims: memoryLeases(), Consumer: "mailer"}
	keyless := millrace.Deduplicate{Claims: memoryLeases(), Consumer: "mailer", Key: inbox.ByMetadata("order")}
	unanswered := millrace.Deduplicate{Claims: memoryLeases(), Consumer: "mailer", Key: inbox.ByFunc("asks",
		func(*message.Message) (string, error) { return "", inbox.ErrUnavailable })}
	doubtful := millrace.Deduplicate{Claims: memoryLeases(), Consumer: "mailer"}
	inDoubt := func(*message.Message) ([]*message.Message, error) {
		return nil, fmt.Errorf("step: %w", inbox.ErrInDoubt)
	}
	for name, mw := range map[string]message.HandlerMiddleware{
		"the store refuses": broken.Middleware,
		"it stands twice":   func(h message.HandlerFunc) message.HandlerFunc { return twice.Middleware(twice.Middleware(h)) },
		"no key":            keyless.Middleware,
		"no answer":         unanswered.Middleware,
		"a step in doubt":   func(message.HandlerFunc) message.HandlerFunc { return doubtful.Middleware(inDoubt) },
		"wrong settings":    millrace.Deduplicate{}.Middleware,
		"those of Inbox":    millrace.Inbox{}.Middleware,
		"those of a gate":   millrace.VersionGate{OnGap: 9}.Middleware,
		"a gate alone":      millrace.VersionGate{}.Middleware,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := mw(func(*message.Message) ([]*message.Message, error) { return nil, nil })
				pauses := make([]time.Duration, 10)
				for i := range pauses {
					began := time.Now()
					require.Error(t, send(h, "a"))
					pauses[i] = time.Since(began)
				}
				require.GreaterOrEqual(t, pauses[0], 50*time.Millisecond)
				require.Less(t, pauses[0], 100*time.Millisecond)
				require.GreaterOrEqual(t, pauses[9], 2500*time.Millisecond)
				require.Less(t, pauses[9], 5*time.Second)
			})
		})
	}
}

type refusing struct{ lease.Store }

func (refusing) Acquire(context.Context, lease.Key, int64, time.Duration) (lease.State, error) {
	return lease.State{}, errors.New("no such table")
}

// What was handled but cannot be confirmed is returned, and counted.
func TestDeduplicateReportsThatAKeyCannotBeConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &sightings{}
		store := unconfirming{&lease.Memory{}}
		h, runs := wrapped(millrace.Deduplicate{
			Claims: inbox.NewLeases(store, inbox.LeasesConfig{Observers: []inbox.Observer{seen}}), Consumer: "mailer",
		})
		require.ErrorContains(t, send(h, "a"), "may run again")
		require.Equal(t, 1, *runs)
		require.Equal(t, 1, seen.doubleEffects)
	})
}

type unconfirming struct{ lease.Store }

func (unconfirming) Confirm(context.Context, lease.Key, int64, time.Duration) error {
	return errors.New("disk full")
}

type sightings struct{ evicted, doubleEffects int }

func (s *sightings) Observe(_ context.Context, e inbox.Event) {
	switch e.Kind {
	case inbox.KindEvicted:
		s.evicted += e.Count
	case inbox.KindDoubleEffect:
		s.doubleEffects++
	}
}

func TestMemoryLeasesForgetTheOldestWhenFull(t *testing.T) {
	seen, log := &sightings{}, watermill.NewCaptureLogger()
	h, runs := wrapped(millrace.Deduplicate{
		Claims:   inbox.NewLeases(&lease.Memory{Limit: 10}, inbox.LeasesConfig{Logger: log, Observers: []inbox.Observer{seen}}),
		Consumer: "mailer",
	})
	for i := range 12 {
		require.NoError(t, send(h, strconv.Itoa(i)))
	}
	require.Equal(t, 2, seen.evicted)
	require.Len(t, log.Captured()[watermill.ErrorLogLevel], 1)
	for i := 2; i < 12; i++ {
		require.NoError(t, send(h, strconv.Itoa(i)))
	}
	require.Equal(t, 12, *runs, "a key within the limit was forgotten")
	require.NoError(t, send(h, "0"))
	require.Equal(t, 13, *runs)
}

// An observer that panics at an eviction leaves the key of the delivery free, and is told once.
func TestMemoryLeasesAreFreeAfterAPanicAtAnEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []int
		panics := inbox.On(func(_ context.Context, e inbox.Event) {
			told = append(told, e.Count)
			panic("full")
		}, inbox.KindEvicted)
		h, runs := wrapped(millrace.Deduplicate{
			Claims:   inbox.NewLeases(&lease.Memory{Limit: 1}, inbox.LeasesConfig{Observers: []inbox.Observer{panics}}),
			Consumer: "mailer",
		})
		require.NoError(t, send(h, "a"))
		require.PanicsWithValue(t, "full", func() { _ = send(h, "b") })
		began := time.Now()
		require.NoError(t, send(h, "b"))
		require.Equal(t, began, time.Now(), "the redelivery waited")
		require.Equal(t, 2, *runs)
		require.Equal(t, []int{1}, told)
	})
}

func TestMemoryLeasesForgetNothingInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10
		claims := inbox.NewLeases(&lease.Memory{Limit: limit}, inbox.LeasesConfig{})
		d := millrace.Deduplicate{Claims: claims, Consumer: "mailer"}
		leave := make(chan struct{})
		slow := d.Middleware(func(*message.Message) ([]*message.Message, error) { <-leave; return nil, nil })
		quick, runs := wrapped(d)
		require.NoError(t, send(quick, "before"))
		var flying sync.WaitGroup
		for i := range limit {
			flying.Go(func() { require.NoError(t, send(slow, strconv.Itoa(i))) })
		}
		synctest.Wait()
		require.ErrorContains(t, send(quick, "refused"), "raise it")
		require.ErrorIs(t, send(quick, "0"), inbox.ErrInProgress)
		close(leave)
		flying.Wait()
		require.NoError(t, send(quick, "0"))
		require.NoError(t, send(quick, "refused"))
		require.Equal(t, 2, *runs)
	})
}

func TestMemoryLeasesUseTheRoomOfWhatExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &sightings{}
		claims := inbox.NewLeases(&lease.Memory{Limit: 10}, inbox.LeasesConfig{Observers: []inbox.Observer{seen}})
		long, longRuns := wrapped(millrace.Deduplicate{Claims: claims, Consumer: "mailer"})
		short, _ := wrapped(millrace.Deduplicate{Claims: claims, Consumer: "pusher", Retention: time.Second})
		require.NoError(t, send(long, "a"))
		for i := range 50 {
			require.NoError(t, send(short, strconv.Itoa(i)))
			time.Sleep(time.Second / 4)
		}
		require.Zero(t, seen.evicted)
		require.NoError(t, send(long, "a"))
		require.Equal(t, 1, *longRuns)

		// Leases whose holders vanished leave when their room is needed.
		for i := range 20 {
			key := lease.Key{Consumer: "vanished", ID: strconv.Itoa(i)}
			state, err := claims.Store().Acquire(t.Context(), key, 1, time.Second)
			require.NoError(t, err)
			require.Equal(t, lease.Taken, state.Status)
			time.Sleep(time.Second / 4)
		}
	})
}
