package inbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestALookThatHadNoAnswerMayTakeLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &Queue{config: QueueConfig{Lease: 2 * time.Minute}}
		look := func(wait func(done <-chan struct{})) time.Duration {
			began := time.Now()
			ctx, cancel := q.patient(t.Context())
			defer cancel()
			wait(ctx.Done())
			q.looked(time.Since(began), ctx.Err() == nil)
			return time.Since(began)
		}
		silent := func(done <-chan struct{}) { <-done }
		for _, bound := range []time.Duration{10 * time.Second, 30 * time.Second, 10 * time.Second} {
			assert.Equal(t, bound, look(silent), "every other may take longer")
		}
		for range 2 {
			look(func(<-chan struct{}) { time.Sleep(20 * time.Second) })
		}
		assert.Equal(t, 30*time.Second, look(silent), "the database is as slow as before")
		look(func(<-chan struct{}) {})
		assert.Equal(t, 10*time.Second, look(silent), "it answers again")
	})
}
