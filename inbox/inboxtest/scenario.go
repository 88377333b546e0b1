package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
)

// Scenario is a service, what it is given, and how to see what it did. It is played many
// times, each time from scratch and each time with other faults.
type Scenario struct {
	// Databases is where it is played, after everything in them was dropped: see [Database].
	// Each one serves one play at a time, so several are faster. Without any, a play has a SQLite file of its own; the test must import
	// modernc.org/sqlite or github.com/mattn/go-sqlite3 then.
	Databases []Database

	// Prepare makes an empty database ready: Migrate, the service's own tables, and what is
	// in them before the first message. It is not disturbed.
	Prepare func(ctx context.Context, db *sqlx.DB) error

	// Service wires the service, the way its main does, with what p gives: database, router,
	// subscriber, publisher. It is called for each process that is started.
	Service func(p *Process) error

	// Inputs are the messages, in the order of their first delivery.
	Inputs []Input

	// Ledger reads what the service did: balances, orders, whatever must come out the same
	// whatever happens. Leave out what may differ from play to play, such as times and
	// random ids. It is compared with reflect.DeepEqual.
	Ledger func(ctx context.Context, db *sqlx.DB) (any, error)

	// Want is the ledger that is right. Without it, the ledger of an undisturbed play is.
	Want any

	// Rebuild empties what the service builds anew from a replay: the tables of a projection, for
	// instance, that is then in a new epoch. [ReplayMode] calls it, and no other.
	Rebuild func(ctx context.Context, db *sqlx.DB) error

	// Produced returns what must be the same in a message that the service published, or ""
	// to pass over it. Defaults to topic and payload.
	Produced func(topic string, msg *message.Message) string

	// OrderKey returns whose order a published message is in, "" for nobody's. Without it, the
	// order of what is published does not matter.
	OrderKey func(topic string, msg *message.Message) string

	// InFlight is how many messages the broker hands out before it has an answer. Defaults to 1,
	// which makes the plays repeatable.
	InFlight int

	// TablePrefix is that of the service's inbox.Config. Defaults to "millrace_".
	TablePrefix string

	// Namespace is that of the service's inbox.Config.
	Namespace string

	// Outside names tables that a handler may write to outside of its transaction.
	Outside []string

	// Slow is for how long an answer of the database is held back at most; it is given up
	// when the caller does. Choose it above the Timeout that Service gives the inbox, and that
	// as short as the handler allows. Defaults to 1 second.
	Slow time.Duration

	// Patience is how long a play may take before what is not done counts as stuck. Defaults
	// to 20 seconds.
	Patience time.Duration
}

// Input is a message and the topic it comes from.
type Input struct {
	Topic   string
	Message *message.Message
}

// To returns messages as inputs of one topic.
func To(topic string, messages ...*message.Message) []Input {
	inputs := make([]Input, len(messages))
	for i, msg := range messages {
		inputs[i] = Input{Topic: topic, Message: msg}
	}
	return inputs
}

func (s *Scenario) setDefaults() {
	if s.InFlight == 0 {
		s.InFlight = 1
	}
	if s.TablePrefix == "" {
		s.TablePrefix = "millrace_"
	}
	if s.Slow == 0 {
		s.Slow = time.Second
	}
	if s.Patience == 0 {
		s.Patience = 20 * time.Second
	}
	if s.Produced == nil {
		s.Produced = func(topic string, msg *message.Message) string {
			return fmt.Sprintf("%s %q", topic, msg.Payload)
		}
	}
}

// validate returns every problem of s at once.
func (s *Scenario) validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if s.Service == nil {
		problem("Service is required: it wires the service with what a Process gives")
	}
	if s.Ledger == nil {
		problem("Ledger is required: it reads what the service did")
	}
	if len(s.Inputs) == 0 {
		problem("Inputs are required: see inboxtest.To")
	}
	for i, in := range s.Inputs {
		if in.Topic == "" || in.Message == nil {
			problem("input %d has no topic or no message", i+1)
		}
	}
	for i, db := range s.Databases {
		if db.Driver == "" || db.DSN == "" {
			problem("database %d has no driver or no DSN", i+1)
		}
	}
	if s.InFlight < 0 || s.Slow < 0 || s.Patience < 0 {
		problem("InFlight, Slow and Patience must not be negative")
	}
	return errors.Join(problems...)
}
