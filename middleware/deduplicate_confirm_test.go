package middleware_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A key that is gone when it is to be confirmed counts as confirmed only if the store says so.
func TestDeduplicateConfirmsNoKeyOfAnother(t *testing.T) {
	for name, c := range map[string]struct {
		lost, want error
		other      lease.Status // what another process did with the key meanwhile
	}{
		"another process holds it":                 {want: inbox.ErrLeaseLost, other: lease.Taken},
		"nobody has it":                            {},
		"a heartbeat was told, and it was handled": {lost: inbox.ErrLeaseLost, want: inbox.ErrLeaseLost, other: lease.Confirmed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := &sightings{}
				store := &forgetting{Memory: &lease.Memory{}, lost: c.lost, other: c.other}
				runs := 0
				h := millrace.Deduplicate{
					Claims: inbox.NewLeases(store, inbox.LeasesConfig{Observers: []inbox.Observer{seen}}), Consumer: "mailer",
				}.Middleware(func(*message.Message) ([]*message.Message, error) {
					runs++
					time.Sleep(30 * time.Second)
					return nil, nil
				})
				err := send(h, "a")
				require.ErrorIs(t, err, c.want)
				if c.want != nil {
					require.Equal(t, 1, seen.doubleEffects)
					return
				}
				require.NoError(t, send(h, "a"))
				require.Equal(t, 1, runs, "it is confirmed")
			})
		})
	}
}

// forgetting loses the key at the first call of Confirm, as a failover to a replica does, and gives no answer.
type forgetting struct {
	*lease.Memory
	lost  error // the answer to Extend
	other lease.Status
	asked bool
}

func (f *forgetting) Extend(context.Context, lease.Key, int64, time.Duration) error { return f.lost }

func (f *forgetting) Confirm(ctx context.Context, key lease.Key, token int64, retention time.Duration) error {
	if f.asked {
		return f.Memory.Confirm(ctx, key, token, retention)
	}
	f.asked = true
	const another = 1
	err := f.Release(ctx, key, token)
	if f.other != 0 {
		_, acquired := f.Acquire(ctx, key, another, time.Hour)
		err = errors.Join(err, acquired)
	}
	if f.other == lease.Confirmed {
		err = errors.Join(err, f.Memory.Confirm(ctx, key, another, time.Hour))
	}
	return errors.Join(errors.New("no answer"), err)
}

// An outage of two thirds of a lease loses no lease, whenever it begins.
func TestDeduplicateKeepsItsLeasesInAnOutage(t *testing.T) {
	for _, from := range []time.Duration{1, 19 * time.Second, 21 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			store := &unreachable{Memory: &lease.Memory{}, from: began.Add(from), to: began.Add(from + 40*time.Second), until: began.Add(time.Minute)}
			runs := 0
			h := millrace.Deduplicate{Claims: inbox.NewLeases(store, inbox.LeasesConfig{}), Consumer: "mailer"}.Middleware(
				func(msg *message.Message) ([]*message.Message, error) {
					runs++
					time.Sleep(90 * time.Second)
					return nil, msg.Context().Err()
				})
			for range 2 {
				require.NoError(t, send(h, "a"))
			}
			require.Equal(t, 1, runs)
			require.Less(t, store.asked, 50)
		})
	}
}

// unreachable extends no lease for a time, and none that has ended.
type unreachable struct {
	*lease.Memory
	from, to, until time.Time
	asked           int
}

func (u *unreachable) Extend(ctx context.Context, key lease.Key, token int64, d time.Duration) error {
	u.asked++
	now := time.Now()
	switch {
	case !now.Before(u.from) && now.Before(u.to):
		return inbox.ErrUnavailable
	case !now.Before(u.until):
		return inbox.ErrLeaseLost
	}
	u.until = now.Add(d)
	return u.Memory.Extend(ctx, key, token, d)
}
