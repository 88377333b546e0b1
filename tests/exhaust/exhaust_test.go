// Package exhaust_test plays services of every kind with package inboxtest: a fault of each
// sort at each of their points, on each database, and random sequences of faults.
package exhaust_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestEveryFaultAtEveryPoint plays each service on each database with one fault, which takes
// ten minutes; usually on SQLite, with a crash after each commit.
func TestEveryFaultAtEveryPoint(t *testing.T) {
	dialects, play := []string{"sqlite"}, inboxtest.CrashAfterCommit
	if testdb.Long() {
		dialects, play = all, inboxtest.Exhaust
	}
	for name, s := range services {
		t.Run(name, func(t *testing.T) { onEach(t, s, dialects, play) })
	}
}

// TestRandomFaults plays each service on each database with several faults. Set
// MILLRACE_TEST_PLAYS for more plays of each, and MILLRACE_TEST_SEED for others.
func TestRandomFaults(t *testing.T) {
	plays := number(t, "MILLRACE_TEST_PLAYS", uint64(testdb.Rounds(5, 350)))
	seed := number(t, "MILLRACE_TEST_SEED", 1)
	for name, s := range services {
		t.Run(name, func(t *testing.T) {
			onEach(t, s, all, func(t testing.TB, s inboxtest.Scenario) { inboxtest.Random(t, s, int(plays), seed) })
		})
	}
}

var all = []string{"postgres", "mysql", "sqlite"}

// onEach plays s on databases of these dialects.
func onEach(t *testing.T, s service, dialects []string, play func(testing.TB, inboxtest.Scenario)) {
	t.Helper()
	for _, dialect := range dialects {
		t.Run(dialect, func(t *testing.T) {
			scenario := s.scenario()
			if dialect != "sqlite" {
				for range abreast {
					db := testdb.On(t, dialect)
					scenario.Databases = append(scenario.Databases, inboxtest.Database{Driver: db.Driver, DSN: db.DSN})
				}
			}
			play(t, scenario)
		})
	}
}

// abreast is how many plays run at once on a server.
const abreast = 4

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, variable)
	return n
}

// service is what is played: how it is wired, and what it is given.
type service struct {
	wire   func(p *inboxtest.Process, store *inbox.Store) error
	inputs []inboxtest.Input
	want   []account
	order  bool // an account is booked in the order of its versions
}

// scenario returns the service on a database with a table of accounts.
func (s service) scenario() inboxtest.Scenario {
	scenario := inboxtest.Scenario{
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{}) //nolint:contextcheck // it takes none
			if err != nil {
				return err
			}
			if err := store.Migrate(ctx); err != nil {
				return err
			}
			for _, ddl := range []string{
				`CREATE TABLE accounts (id VARCHAR(20) PRIMARY KEY, balance INTEGER NOT NULL, history VARCHAR(200) NOT NULL)`,
				`INSERT INTO accounts (id, balance, history) VALUES ('ada', 0, ''), ('bob', 0, '')`,
			} {
				if _, err := db.ExecContext(ctx, ddl); err != nil {
					return err
				}
			}
			return nil
		},
		Service: func(p *inboxtest.Process) error {
			store, err := inbox.NewStore(p.DB, inbox.Config{Logger: p.Logger})
			if err != nil {
				return err
			}
			p.OnClose(store.Close)
			p.Router.AddPlugin(store.Plugin())
			return s.wire(p, store)
		},
		Inputs: s.inputs,
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			var all []account
			err := db.SelectContext(ctx, &all, `SELECT id, balance, history FROM accounts ORDER BY id`)
			for i, a := range all {
				booked := strings.Fields(a.History)
				if !s.order {
					slices.Sort(booked)
				}
				all[i].History = strings.Join(booked, " ")
			}
			return all, err
		},
		Want: s.want,
	}
	return scenario
}

// account is a row of the ledger. Its history names what was booked, in order.
type account struct {
	ID      string
	Balance int
	History string
}

func (a account) String() string { return fmt.Sprintf("%s has %d by %s", a.ID, a.Balance, a.History) }

// TestExpiredRetention delivers messages of yesterday again when the inbox has forgotten them.
func TestExpiredRetention(t *testing.T) {
	s := services["Inbox"]
	s.inputs = nil
	for _, in := range payments {
		msg := in.Message.Copy()
		msg.Metadata.Set("ce_time", time.Now().Add(-24*time.Hour).Format(time.RFC3339))
		s.inputs = append(s.inputs, inboxtest.Input{Topic: in.Topic, Message: msg})
	}
	onEach(t, s, all, inboxtest.ExpiredRetention)
}
