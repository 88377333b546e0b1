package recent_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/recent"
)

func TestSetRemembersKeyAndHash(t *testing.T) {
	s := recent.NewSet(10, time.Minute)
	s.Add("a", 7)
	hash, known := s.Get("a")
	assert.True(t, known)
	assert.EqualValues(t, 7, hash)
	s.Add("a", 8)
	hash, _ = s.Get("a")
	assert.EqualValues(t, 8, hash, "the last counts")
	_, known = s.Get("b")
	assert.False(t, known)
}

func TestSetIsBounded(t *testing.T) {
	const limit = 100
	s := recent.NewSet(limit, time.Hour)
	count := func(upTo int) (known int) {
		for i := range upTo {
			if _, ok := s.Get(fmt.Sprint(i)); ok {
				known++
			}
		}
		return known
	}
	for i := range 10 * limit {
		s.Add(fmt.Sprint(i), 0)
		for back := range min(i, limit/2) {
			_, known := s.Get(fmt.Sprint(i - back))
			require.True(t, known, "key %d of %d", i-back, i)
		}
	}
	assert.LessOrEqual(t, count(10*limit), limit)
}

func TestSetForgetsWithTime(t *testing.T) {
	const ttl = 10 * time.Minute
	for _, pause := range []time.Duration{time.Second, ttl / 4, ttl/2 - 1, ttl / 2, ttl - 1, ttl, 3 * ttl} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := recent.NewSet(1_000_000, ttl)
				s.Add("a", 1)
				began := time.Now()
				for i := 0; time.Since(began) < 2*ttl; i++ {
					_, known := s.Get("a")
					if age := time.Since(began); age < ttl/2 {
						assert.True(t, known, "at the age of %v", age)
					} else if age > ttl+ttl/2 {
						assert.False(t, known, "at the age of %v", age)
					}
					<-time.After(pause)
					s.Add(fmt.Sprint(i), 1) // whatever comes in between
				}
			})
		})
	}
}

func TestSetForgetsWhereNothingElseIsAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := recent.NewSet(10, time.Minute)
		s.Add("a", 1)
		<-time.After(time.Minute)
		_, known := s.Get("a")
		assert.False(t, known)
	})
}

func TestForgetDropsEverything(t *testing.T) {
	s := recent.NewSet(4, time.Hour)
	for i := range 4 { // both generations
		s.Add(fmt.Sprint(i), 1)
	}
	s.Forget()
	for i := range 4 {
		_, known := s.Get(fmt.Sprint(i))
		assert.False(t, known)
	}
	s.Add("a", 1)
	_, known := s.Get("a")
	assert.True(t, known)
}

func TestSetIsSafeForConcurrentUse(t *testing.T) {
	s := recent.NewSet(50, time.Nanosecond)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				s.Add(fmt.Sprint(worker, i), int64(i))
				s.Get(fmt.Sprint(worker, i-1))
				if i%100 == 0 {
					s.Forget()
				}
			}
		})
	}
	wg.Wait()
}

func TestRaiseNeverLowers(t *testing.T) {
	s := recent.NewSet(10, time.Minute)
	for _, n := range []int64{3, 5, 4} {
		s.Raise("a", n)
	}
	number, _ := s.Get("a")
	assert.EqualValues(t, 5, number)
}
