package chaos_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// ring is the pipeline with all that it runs on.
type ring struct {
	testing.TB
	mode   pubsub.Mode
	rabbit *servers.Server
	db     *servers.Server // or pair
	pair   *servers.Pair
	ledger *ledger
	wires  []*servers.Wire // to the database, of the ledger too
	seats  []*seat
}

// seat is a place for one member after the other.
type seat struct {
	membership
	database, broker *servers.Wire
	process          *process.Process
	began            int
	failed           []string // why members ended by themselves
	all              []*process.Process
}

const members = 3

func newRing(t *testing.T, dialect string, mode pubsub.Mode) *ring {
	r := &ring{TB: t, mode: mode}
	var starts sync.WaitGroup
	starts.Go(func() { r.rabbit = servers.RabbitMQ(t) })
	dsn := r.startDatabase(dialect)
	starts.Wait()
	require.NotNil(t, r.rabbit)
	own := r.wire()
	database := testdb.At(t, dialect, strings.Replace(dsn, r.primary().Addr(), own.Addr(), 1))
	r.ledger = newLedger(t, database)
	require.NoError(t, rabbitmq.Declare(rabbitmq.NewQueueConfig(r.rabbit.URL(), rabbitmq.Queues{}), transfers, bulk))
	r.rabbit.Restart()
	for i := range members {
		s := &seat{
			database: r.wire(), broker: servers.Proxy(t, r.rabbit.Addr()),
			membership: membership{Name: fmt.Sprint("member ", i+1), Mode: mode, Produces: true, Faulty: true},
		}
		through := database.Open(t, testdb.Via(s.database.Addr()), testdb.FrozenHosts(timeout, timeout))
		s.Driver, s.DSN = through.Driver, through.DSN
		s.RabbitMQ = strings.Replace(r.rabbit.URL(), r.rabbit.Addr(), s.broker.Addr(), 1)
		r.seats = append(r.seats, s)
		r.seat(s)
	}
	return r
}

// startDatabase starts the server, or a pair of PostgreSQL, and returns its DSN.
func (r *ring) startDatabase(dialect string) string {
	if dialect == "postgres" {
		r.pair = servers.PostgresPair(r)
	} else {
		r.db = servers.MariaDB(r)
	}
	return r.primary().DSN()
}

func (r *ring) primary() *servers.Server {
	if r.pair != nil {
		return r.pair.Primary()
	}
	return r.db
}

func (r *ring) wire() *servers.Wire {
	w := servers.Proxy(r, r.primary().Addr())
	r.wires = append(r.wires, w)
	return w
}

// seat starts a member.
func (r *ring) seat(s *seat) {
	s.process = process.Self(r, memberName, s.membership)
	s.began++
	s.all = append(s.all, s.process)
}

// watch starts the members again that ended by themselves: one that finds no database at its
// start, for instance.
func (r *ring) watch(m *monkey) {
	for _, s := range r.seats {
		if m.take(s.Name) {
			r.replace(s)
			m.leave(s.Name)
		}
	}
}

func (r *ring) replace(s *seat) {
	select {
	case <-s.process.Ended():
	default:
		return
	}
	why := "it ended without a word"
	if said := s.process.Events(process.Closed); len(said) > 0 {
		why = said[0].Error
	}
	s.failed = append(s.failed, why)
	r.seat(s)
}

// calm replaces the members by others that make nothing new and do not fail.
func (r *ring) calm() {
	for _, s := range r.seats {
		s.process.Kill()
		s.Produces, s.Faulty = false, false
		r.seat(s)
	}
}
