package demo

import (
	"context"
	"math/rand/v2"
	"sync"
)

// service is one of the two, in a process that is killed now and then.
type service struct {
	*process
	args []string

	mu    sync.Mutex
	count map[string]int // of what it says
}

// startService starts a service and waits until it is ready.
func startService(ctx context.Context, args ...string) (*service, error) {
	s := &service{args: args, count: make(map[string]int)}
	return s, s.start(ctx)
}

func (s *service) start(ctx context.Context) (err error) {
	starts := s.counted("ready")
	if s.process, err = start(s.tell, s.args...); err != nil {
		return err
	}
	return s.until(ctx, func() (bool, error) { return s.counted("ready") > starts, nil })
}

// crash kills the service so many times before it has handled so many messages, and starts
// it again.
func (s *service) crash(ctx context.Context, times, messages int) error {
	for left := times; left > 0; left-- {
		share := (messages - s.counted("completed")) / (left + 1)
		target := s.counted("completed") + share/2 + rand.IntN(share+1)
		err := s.until(ctx, func() (bool, error) { return s.counted("completed") >= target, nil })
		if err != nil {
			return err
		}
		s.kill()
		s.tell("killed")
		if err := s.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) tell(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[what]++
}

func (s *service) counted(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[what]
}
