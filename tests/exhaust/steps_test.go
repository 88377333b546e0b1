package exhaust_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/testdb"
)

// stepServices send a mail for each payment. The provider is a table that is not the service's: what is in it was
// sent, whoever died since.
var stepServices = map[string]service{
	"Before, a provider that honours keys": {mails: true, inputs: payments, want: booked, wire: func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(mailingBefore(store, inbox.Step{Idempotent: true, Do: sendKeyed(p)}))
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, bookOnly)
		return nil
	}},
	"Before, a provider that can be asked": {mails: true, inputs: payments, want: booked, wire: func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(mailingBefore(store, inbox.Step{Do: send(p), Verify: sent(p)}))
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, bookOnly)
		return nil
	}},
	"Before, behind a queue": {mails: true, inputs: payments, want: booked, wire: func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(mailingBefore(store, inbox.Step{Do: send(p), Verify: sent(p)}))
		return consume(p, durable(store, pubsub.StoreFirst))
	}},
	"Deduplicate": {mails: true, inputs: payments, want: nothingBooked, wire: func(p *inboxtest.Process, store *inbox.Store) error {
		step := stepOf(inbox.Step{Do: send(p), Verify: sent(p)})
		p.Router.AddMiddleware(millrace.Deduplicate{Claims: store.Leases(), Lease: lease, Wait: patience}.Middleware)
		p.Router.AddConsumerHandler("mail", "payments", p.Subscriber, func(msg *message.Message) error {
			_, err := step.Run(msg.Context())
			return err
		})
		return nil
	}},
	"an intent through the outbox, in the order of versions": {
		mails: true, inputs: shuffled, order: true, want: []account{{"ada", 22, "a1 a2 a3"}, {"bob", 20, "b1"}},
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			out, err := relayed(p)
			if err != nil {
				return err
			}
			// The intent's UUID is made of the payment, so it is the sender's key, and the provider's.
			p.Router.AddHandler("book", "payments", queued(p, store), "mails", p.Publisher, func(msg *message.Message) ([]*message.Message, error) {
				id, err := inbox.ID(msg.Context(), "mail")
				if err != nil {
					return nil, err
				}
				return []*message.Message{message.NewMessage(id, msg.Payload)}, bookOnly(msg)
			}).AddMiddleware(
				millrace.Inbox{Store: store, Outbox: out, Timeout: timeout}.Middleware, millrace.VersionGate{}.Middleware)
			step := stepOf(inbox.Step{Do: send(p), Verify: sent(p)})
			p.Router.AddConsumerHandler("mail", "mails", p.Subscriber, func(msg *message.Message) error {
				_, err := step.Run(msg.Context())
				return err
			}).AddMiddleware(millrace.Deduplicate{Claims: store.Leases(), Lease: lease, Wait: patience}.Middleware)
			return nil
		},
	},
}

var nothingBooked = []account{{"ada", 0, ""}, {"bob", 0, ""}}

// A process that died has its step for so long, and another one waits for it.
const lease, patience = 600 * time.Millisecond, 5 * time.Second

func stepOf(step inbox.Step) inbox.Step {
	step.Name, step.Lease, step.Wait = "mail", lease, patience
	return step
}

func mailingBefore(store *inbox.Store, step inbox.Step) message.HandlerMiddleware {
	step = stepOf(step)
	return millrace.Inbox{Store: store, Timeout: timeout, Options: inbox.Options{BeforeTimeout: 2 * patience, Before: func(msg *message.Message) error {
		_, err := step.Run(msg.Context())
		return err
	}}}.Middleware
}

func queued(p *inboxtest.Process, store *inbox.Store) message.Subscriber {
	sub, err := durable(store, pubsub.StoreOnFailure).Decorate(p.Subscriber)
	if err != nil {
		panic(err) // its settings are wrong
	}
	return sub
}

// send is a provider that sends whatever it is asked to.
func send(p *inboxtest.Process) func(context.Context, string) ([]byte, error) {
	return asking(p, map[string]string{"": `INSERT INTO mails (id) VALUES (?)`})
}

// sendKeyed is one that does nothing twice for one id.
func sendKeyed(p *inboxtest.Process) func(context.Context, string) ([]byte, error) {
	return asking(p, map[string]string{
		"": `INSERT INTO keyed (id) VALUES (?) ON CONFLICT DO NOTHING`, "mysql": `INSERT IGNORE INTO keyed (id) VALUES (?)`,
	})
}

func asking(p *inboxtest.Process, queries map[string]string) func(context.Context, string) ([]byte, error) {
	return func(ctx context.Context, id string) ([]byte, error) {
		query := queries[strings.TrimSuffix(p.DB.DriverName(), "db")]
		if query == "" {
			query = queries[""]
		}
		return []byte("receipt"), p.External(ctx, "mail", func() error {
			_, err := p.DB.ExecContext(ctx, p.DB.Rebind(query), id)
			return err
		})
	}
}

// sent asks the provider.
func sent(p *inboxtest.Process) func(context.Context, string) (bool, []byte, error) {
	return func(ctx context.Context, id string) (bool, []byte, error) {
		var n int
		err := p.DB.GetContext(ctx, &n, p.DB.Rebind(`SELECT COUNT(*) FROM mails WHERE id = ?`), id)
		return n > 0, []byte("receipt"), err
	}
}

// provider is what the providers keep.
var provider = []string{`CREATE TABLE mails (id VARCHAR(40) NOT NULL)`, `CREATE TABLE keyed (id VARCHAR(40) NOT NULL PRIMARY KEY)`}

// mailed is a ledger: what was booked, and how often each mail was sent.
type mailed struct {
	Accounts []account
	Mails    []int
}

// stepScenario is the scenario of s with a provider.
func stepScenario(s service) inboxtest.Scenario {
	scenario := s.scenario()
	ledger := scenario.Ledger
	scenario.Ledger = func(ctx context.Context, db *sqlx.DB) (any, error) {
		accounts, err := ledger(ctx, db)
		var m mailed
		err = errors.Join(err, db.SelectContext(ctx, &m.Mails,
			`SELECT COUNT(*) FROM (SELECT id FROM mails UNION ALL SELECT id FROM keyed) sent GROUP BY id`))
		if err == nil {
			m.Accounts = accounts.([]account)
		}
		return m, err
	}
	once := make([]int, len(s.inputs))
	for i := range once {
		once[i] = 1
	}
	scenario.Want = mailed{s.want, once}
	return scenario
}

func onEachStep(t *testing.T, services map[string]service, dialects []string, play func(testing.TB, inboxtest.Scenario)) {
	t.Helper()
	for _, dialect := range testdb.Sample(t, 1, dialects) {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			databases := databases(t, dialect, abreast)
			for _, name := range some(t, services) {
				t.Run(name, func(t *testing.T) {
					scenario := stepScenario(services[name])
					scenario.Databases = databases
					play(t, scenario)
				})
			}
		})
	}
}

// TestStepsWithEveryFault has the provider see each mail as one effect, whatever crashes: with faults of one sort, another
// from day to day, at each point of one message, on SQLite; with all, of all messages, on all databases, where there is time.
func TestStepsWithEveryFault(t *testing.T) {
	testdb.Turn(t, 2, seconds)
	if testdb.Long() {
		onEachStep(t, stepServices, all, inboxtest.Exhaust)
		return
	}
	one := ofOneMessage("Before, a provider that honours keys", "Before, a provider that can be asked", "Deduplicate")
	for _, play := range testdb.Sample(t, 1, []func(testing.TB, inboxtest.Scenario){
		inboxtest.CrashBeforeCommit, inboxtest.CrashAfterCommit, inboxtest.SideEffectThenCrash, inboxtest.InterruptedStatement, inboxtest.Panics,
	}) {
		onEachStep(t, one, []string{"sqlite"}, play)
	}
}

// ofOneMessage returns services with the first of the payments.
func ofOneMessage(names ...string) map[string]service {
	one := map[string]service{}
	for _, name := range names {
		s := stepServices[name]
		s.inputs = payments[:1]
		if s.want = oneBooked; name == "Deduplicate" {
			s.want = nothingBooked
		}
		one[name] = s
	}
	return one
}

// TestStepsWithRandomFaults is a sample of it on each database.
func TestStepsWithRandomFaults(t *testing.T) {
	plays := testdb.Rounds(2, 200)
	onEachStep(t, stepServices, all, func(t testing.TB, s inboxtest.Scenario) { inboxtest.Random(t, s, plays, 1) })
}

// TestStepsOfCopies gives each message to two processes at once.
func TestStepsOfCopies(t *testing.T) {
	testdb.Turn(t, 2, seconds)
	if testdb.Long() {
		onEachStep(t, stepServices, all, inboxtest.ConcurrentCopies)
		return
	}
	onEachStep(t, ofOneMessage("Before, a provider that can be asked", "Deduplicate"), all, inboxtest.ConcurrentCopies)
}

// TestStepsOfReplays replays what is remembered and what is forgotten: a rebuild sends nothing twice.
func TestStepsOfReplays(t *testing.T) {
	onEachStep(t, stepServices, all, func(t testing.TB, s inboxtest.Scenario) {
		s.Rebuild = func(ctx context.Context, db *sqlx.DB) error {
			_, err := db.ExecContext(ctx, `UPDATE accounts SET balance = 0, history = ''`)
			return err
		}
		inboxtest.ReplayMode(t, s)
	})
}
