package browser_test

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

const consumer = "billing"

// service is one whose dashboard a browser can reach.
type service struct {
	*stuck.Service
	home string // address of the first page
}

func newService(t *testing.T, change ...func(*dashboard.Config)) *service {
	t.Helper()
	s := &service{Service: stuck.New(t, testdb.On(t, "sqlite"))}
	s.home = s.listen(change...)
	return s
}

// named says which system it is.
func named(c *dashboard.Config) {
	c.Title, c.Color, c.Database = "shop, production", "red", "millrace@db.internal/shop"
}

// listen serves another dashboard of the service and returns where.
func (s *service) listen(change ...func(*dashboard.Config)) string {
	s.Helper()
	server := httptest.NewServer(s.Dashboard(change...))
	s.Cleanup(server.Close)
	return server.URL + stuck.Prefix + "/"
}

// several serves the service's database beside one that does not answer, and returns where.
func (s *service) several() string {
	s.Helper()
	handlers := map[string]*dashboard.Handler{}
	gone := stuck.New(s.T, testdb.On(s.T, "sqlite"))
	require.NoError(s, gone.DB.Close())
	for name, of := range map[string]*stuck.Service{"eu": s.Service, "us": gone} {
		var err error
		handlers[name], err = dashboard.New(of.Store, dashboard.Config{Outbox: of.Outbox, Logger: s.Log})
		require.NoError(s, err)
	}
	all, err := dashboard.NewDatabases(handlers)
	require.NoError(s, err)
	server := httptest.NewServer(all)
	s.Cleanup(server.Close)
	return server.URL + "/"
}

// fail has n orders fail, each with a number of its own.
func (s *service) fail(n int) {
	s.Helper()
	s.Serve(consumer)
	msgs := make([]*message.Message, 0, n)
	for i := range n {
		msgs = append(msgs, stuck.Order(i+1, fmt.Sprintf("account %d has no owner", i+1)))
	}
	s.Put(consumer, msgs...)
	s.AwaitStuck(n)
}

// handled waits until nothing is open.
func (s *service) handled() {
	s.Helper()
	s.Await(0, `SELECT COUNT(*) FROM millrace_messages`)
}
