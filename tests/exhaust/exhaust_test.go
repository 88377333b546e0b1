// Package exhaust_test plays services of every kind with package inboxtest: a fault of each
// sort at each of their points, on each database, and random sequences of faults.
package exhaust_test

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestEveryFaultAtEveryPoint plays each service on each database with one fault, which takes
// minutes; usually on SQLite, with a crash after each commit.
func TestEveryFaultAtEveryPoint(t *testing.T) {
	dialects, play := []string{"sqlite"}, inboxtest.CrashAfterCommit
	if testdb.Long() {
		dialects, play = all, inboxtest.Exhaust
	}
	onEach(t, services, dialects, abreast, play)
}

// TestRandomFaults plays each service on each database with several faults, hundreds of times; usually
// a few times on SQLite. Set MILLRACE_TEST_PLAYS for more plays of each, and MILLRACE_TEST_SEED for others.
func TestRandomFaults(t *testing.T) {
	plays := number(t, "MILLRACE_TEST_PLAYS", uint64(testdb.Rounds(5, 350)))
	seed := number(t, "MILLRACE_TEST_SEED", 1)
	dialects := []string{"sqlite"}
	if testdb.Long() {
		dialects = all
	}
	onEach(t, services, dialects, abreast, func(t testing.TB, s inboxtest.Scenario) { inboxtest.Random(t, s, int(plays), seed) })
}

var all = []string{"postgres", "mysql", "sqlite"}

// onEach plays services on databases of these dialects, on those of one of them a day, so many plays at once on a server.
func onEach(
	t *testing.T, services map[string]service, dialects []string, abreast int, play func(testing.TB, inboxtest.Scenario),
) {
	t.Helper()
	for _, dialect := range testdb.Sample(t, 1, dialects) {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			databases := databases(t, dialect, abreast)
			for _, name := range some(t, services) {
				t.Run(name, func(t *testing.T) {
					scenario := services[name].scenario()
					scenario.Databases = databases
					play(t, scenario)
				})
			}
		})
	}
}

// some returns the name of a service, another from day to day, or all.
func some(t testing.TB, services map[string]service) []string {
	t.Helper()
	return testdb.Sample(t, 1, slices.Sorted(maps.Keys(services)))
}

// databases returns what plays take place on, nothing where each has a file of its own.
func databases(t *testing.T, dialect string, abreast int) (all []inboxtest.Database) {
	t.Helper()
	if dialect == "sqlite" {
		return nil
	}
	for range abreast {
		db := testdb.On(t, dialect, append(unsynced[dialect], testdb.Empty())...) // a play begins with that
		all = append(all, inboxtest.Database{Driver: db.Driver, DSN: db.DSN})
	}
	return all
}

// abreast is how many plays run at once on a server where there are many. Most of a play's time it waits for a lease
// to lapse or a connection to be given up. PostgreSQL takes 100 connections by default.
const abreast = 6

// unsynced has a server answer before a commit is on its disk. The processes of a play die, the
// server does not: what it has committed is there, and nothing here could tell whether it was synced.
var unsynced = map[string][]testdb.Option{
	"postgres": {testdb.Params("synchronous_commit", "off")},
}

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
	hands  int  // how many messages the broker hands out at once; 1 if zero
	mails  bool // there is a provider that sends mails
}

// scenario returns the service on a database with a table of accounts.
func (s service) scenario() inboxtest.Scenario {
	scenario := inboxtest.Scenario{
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{})
			if err != nil {
				return err
			}
			if err := store.Migrate(ctx); err != nil {
				return err
			}
			all := []string{
				`CREATE TABLE accounts (id VARCHAR(20) PRIMARY KEY, balance INTEGER NOT NULL, history VARCHAR(200) NOT NULL)`,
				`INSERT INTO accounts (id, balance, history) VALUES ('ada', 0, ''), ('bob', 0, '')`,
			}
			if s.mails {
				all = append(all, provider...)
			}
			for _, ddl := range all {
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
		Inputs:   s.inputs,
		InFlight: s.hands,
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

		Patience: rig.Patience, // with so many plays at once, a busy machine may need it
	}
	if s.mails {
		scenario.Outside = []string{"mails", "keyed"}
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
	onEach(t, map[string]service{"Inbox": s}, all, 1, inboxtest.ExpiredRetention)
}
