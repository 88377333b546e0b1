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
		assert.False(t, s.wait(time.Hour), "it cannot be prolonged once it has ended")
	})
}

func TestSpanWaitsForItsClaimOnlySoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpan(t.Context(), 25*time.Second, 5*time.Second)
		defer s.end()
		time.Sleep(2 * time.Second) // for a connection
		assert.True(t, s.wait(5*time.Second))
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
		handler := s.give(nil, nil)
		for range 2 { // for the claim, and, when the timer went off before, for an aggregate
			assert.True(t, s.wait(5*time.Second))
			time.Sleep(3 * time.Second)
			assert.True(t, s.resume())
			time.Sleep(10 * time.Second)
		}
		deadline, _ := handler.Deadline()
		assert.Equal(t, 5*time.Second, time.Until(deadline), "what it waited is not counted")
		time.Sleep(4 * time.Second)
		synctest.Wait()
		assert.NoError(t, s.tx.Err())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Error(t, s.tx.Err())
	})
}

func TestSpanWaitsForAnAggregateOnlySoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpan(t.Context(), 25*time.Second, 5*time.Second)
		defer s.end()
		time.Sleep(10 * time.Second) // the timer went off, and is set to the end of Timeout
		synctest.Wait()
		assert.True(t, s.wait(5*time.Second))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Error(t, s.tx.Err())
		assert.False(t, s.resume())
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
		assert.True(t, s.deadline().Equal(deadline))
		child, stop := context.WithTimeout(handler, time.Hour)
		defer stop()
		assert.Error(t, child.Err())
	})
}

// Whoever sets the clock moves the end of no span.
func TestSpanGoesByTheClockThatNobodyCanSet(t *testing.T) {
	s := newSpan(t.Context(), 25*time.Second, 5*time.Second)
	defer s.end()
	assert.Contains(t, s.deadline().String(), " m=+", "it has no reading of that clock")
}
