package process

import (
	"context"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/tests/faults"
)

// messageKey finds the UUID of the message in a context, which the statements on its behalf
// are given too.
type messageKey struct{}

func (s *service) before(ctx context.Context, call string) error {
	switch {
	case strings.Contains(call, "INTO millrace_claims"):
		s.reach(ctx, BeforeClaim)
	case strings.Contains(call, "DELETE FROM millrace_outcomes"):
		s.reachSettling(BeforeSettle)
		s.mu.Lock()
		s.settling = true
		s.mu.Unlock()
	case call == faults.Commit:
		s.reach(ctx, BeforeCommit)
		s.mu.Lock()
		settling := s.settling && ctx.Value(messageKey{}) == nil
		s.settling = s.settling && !settling
		s.mu.Unlock()
		if settling {
			s.reachSettling(MidSettle)
		}
	}
	return nil
}

func (s *service) after(ctx context.Context, call string) error {
	if call == faults.Commit {
		s.reach(ctx, AfterCommit)
	}
	return nil
}

// reach stops if point is where the message of ctx is to stop.
func (s *service) reach(ctx context.Context, point Point) {
	if uuid, ok := ctx.Value(messageKey{}).(string); ok {
		s.reachFor(uuid, point)
	}
}

func (s *service) reachFor(uuid string, point Point) {
	s.mu.Lock()
	here := s.stops[uuid] == point
	if here {
		delete(s.stops, uuid)
	}
	s.mu.Unlock()
	if here {
		s.stop(point, uuid)
	}
}

// reachSettling is reach for work that has no message of its own: it may be done for
// others, as long as the message that is to stop there is not acked.
func (s *service) reachSettling(point Point) {
	s.mu.Lock()
	uuid := ""
	for u, p := range s.stops {
		if p == point && acked(s.handed[u]) {
			uuid = u
		}
	}
	s.mu.Unlock()
	if uuid != "" {
		s.reachFor(uuid, point)
	}
}

func acked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

func (s *service) stop(point Point, uuid string) {
	s.Say(Event{Kind: At, Point: point, UUID: uuid})
	<-s.goOn
}
