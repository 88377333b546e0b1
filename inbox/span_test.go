package inbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSpanEndsAtItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpan(t.Context(), 25*time.Second, 5*time.Second)
		defer s.end()
		time.Sleep(24 * time.Second)
		synctest.Wait()
		assert.NoError(t, s.tx.Err())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.ErrorIs(t, s.tx.Err(), context.Canceled)
		assert.True(t, s.late())
		assert.ErrorIs(t, s.give(nil, nil).Err(), context.DeadlineExceeded)
		assert.False(t, s.until(time.Now().Add(time.Hour)), "it cannot be prolonged once it has ended")
	})
}

func TestSpanWaitsForItsClaimOnlySoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpan(t.Context(), 25*time.Second, 5*time.Second)
		defer s.end()
		time.Sleep(2 * time.Second) // for a connection
		assert.True(t, s.until(time.Now().Add(5*time.Second)))
		time.Sleep(4 * time.Second)
		synctest.Wait()
		assert.NoError(t, s.tx.Err())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Error(t, s.tx.Err())
	})
}

func TestSpanHasTimeoutOnceItIsClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpan(t.Context(), 25*time.Second, 5*time.Second)
		defer s.end()
		assert.True(t, s.until(time.Now().Add(5*time.Second)))
		time.Sleep(3 * time.Second)
		assert.True(t, s.until(s.deadline))
		time.Sleep(21 * time.Second)
		synctest.Wait()
		assert.NoError(t, s.tx.Err())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Error(t, s.tx.Err())
	})
}

func TestSpanOutlivesTheDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := newSpan(ctx, 25*time.Second, 5*time.Second)
		defer s.end()
		cancel()
		handler := s.give(nil, nil)
		assert.ErrorIs(t, handler.Err(), context.Canceled, "the handler sees that the delivery was cancelled")
		assert.NoError(t, s.tx.Err(), "and can still finish")
		deadline, ok := handler.Deadline()
		assert.True(t, ok)
		assert.Equal(t, s.deadline, deadline)
		child, stop := context.WithTimeout(handler, time.Hour)
		defer stop()
		assert.Error(t, child.Err())
	})
}
