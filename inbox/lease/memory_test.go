package lease_test

import (
	"context"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
)

// confirm has a message handled, and returns how Acquire answered.
func confirm(t *testing.T, m *lease.Memory, id string) lease.State {
	t.Helper()
	key := lease.Key{Consumer: "mailer", ID: id}
	state, err := m.Acquire(t.Context(), key, 1, time.Minute)
	require.NoError(t, err)
	if state.Status == lease.Taken {
		require.NoError(t, m.Confirm(t.Context(), key, 1, time.Hour))
	}
	return state
}

// Whoever asks the store itself learns of each key that it forgot.
func TestMemoryCountsWhatItForgets(t *testing.T) {
	m := &lease.Memory{Limit: 3}
	evicted := 0
	for i := range 5 {
		state := confirm(t, m, strconv.Itoa(i))
		assert.Equal(t, lease.Taken, state.Status)
		evicted += state.Evicted
	}
	assert.Equal(t, 2, evicted)
	for _, id := range []string{"2", "3", "4"} {
		state := confirm(t, m, id)
		assert.Equal(t, lease.Confirmed, state.Status, id)
		assert.Zero(t, state.Evicted)
	}
}

// Memory forgets the oldest keys also if earlier ones expired while it had room.
func TestMemoryForgetsTheOldestAfterOthersExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &lease.Memory{Limit: 100}
		for i := range 10 {
			confirm(t, m, "expired "+strconv.Itoa(i))
		}
		time.Sleep(2 * time.Hour)
		evicted := 0
		for i := range 105 {
			evicted += confirm(t, m, strconv.Itoa(i)).Evicted
		}
		assert.Equal(t, 5, evicted)
		for i := 5; i < 105; i++ {
			assert.Equal(t, lease.Confirmed, confirm(t, m, strconv.Itoa(i)).Status, i)
		}
	})
}

func TestMemoryRefusesWhereAllIsInFlight(t *testing.T) {
	m := &lease.Memory{Limit: 1}
	_, err := m.Acquire(t.Context(), lease.Key{Consumer: "mailer", ID: "a"}, 1, time.Minute)
	require.NoError(t, err)
	_, err = m.Acquire(t.Context(), lease.Key{Consumer: "mailer", ID: "b"}, 2, time.Minute)
	require.ErrorContains(t, err, "raise it")
}

// The zero value is ready, whichever method is called first.
func TestTheZeroMemoryIsReady(t *testing.T) {
	key := lease.Key{Consumer: "mailer", ID: "a"}
	for name, call := range map[string]func(m *lease.Memory) error{
		"Acquire": func(m *lease.Memory) error {
			_, err := m.Acquire(context.Background(), key, 1, time.Minute)
			return err
		},
		"Release": func(m *lease.Memory) error { return m.Release(context.Background(), key, 1) },
		"Confirm": func(m *lease.Memory) error { return lost(t, m.Confirm(context.Background(), key, 1, time.Minute)) },
		"Extend":  func(m *lease.Memory) error { return lost(t, m.Extend(context.Background(), key, 1, time.Minute)) },
	} {
		require.NoError(t, call(&lease.Memory{}), name)
	}
	_, err := (&lease.Memory{Limit: -1}).Acquire(t.Context(), key, 1, time.Minute)
	require.ErrorContains(t, err, "Limit")
}

// lost checks that nobody holds the key.
func lost(t *testing.T, err error) error {
	t.Helper()
	require.ErrorIs(t, err, inbox.ErrLeaseLost)
	return nil
}

// No retention and no lease is so long that it ends in the past.
func TestMemoryKeepsAKeyForTheLongestTime(t *testing.T) {
	m, key := &lease.Memory{}, lease.Key{Consumer: "mailer", ID: "a"}
	status := func() lease.Status {
		state, err := m.Acquire(t.Context(), key, 1, math.MaxInt64)
		require.NoError(t, err)
		return state.Status
	}
	require.Equal(t, lease.Taken, status())
	assert.Equal(t, lease.Held, status())
	require.NoError(t, m.Extend(t.Context(), key, 1, math.MaxInt64))
	assert.Equal(t, lease.Held, status())
	require.NoError(t, m.Confirm(t.Context(), key, 1, math.MaxInt64))
	assert.Equal(t, lease.Confirmed, status())
}
