package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
)

// Scenario is a service, its inputs, and how to read its effects. It is played many times, each
// time from scratch and with other faults.
type Scenario struct {
	// Databases are those to play on; each play first drops all tables in one of them, see [Database].
	// A database serves one play at a time, so several are faster. Without any, each play has a SQLite
	// file of its own; the test must then import modernc.org/sqlite or github.com/mattn/go-sqlite3.
	Databases []Database

	// Prepare sets up an empty database: it calls Migrate, even if Service does, creates the service's
	// own tables, and fills them as they are before the first message. No faults happen in it.
	Prepare func(ctx context.Context, db *sqlx.DB) error

	// Service wires the service as its main does, with the database, router, subscriber and
	// publisher of p. It is called for each process that starts.
	Service func(p *Process) error

	// Inputs are the messages, in the order of their first delivery.
	Inputs []Input

	// Ledger reads the effects of the service: balances, orders, all that must be the same
	// whatever goes wrong. Omit values that may differ from play to play, such as times and
	// random ids. Ledgers are compared with reflect.DeepEqual.
	Ledger func(ctx context.Context, db *sqlx.DB) (any, error)

	// Want is the correct ledger. Defaults to the ledger of the undisturbed play.
	Want any

	// Rebuild empties the tables that the service rebuilds from a replay in a new epoch, such as those
	// of a projection. Only [ReplayMode] calls it.
	Rebuild func(ctx context.Context, db *sqlx.DB) error

	// Produced returns the part of a published message that must be the same in every play, or ""
	// to ignore the message. Defaults to topic and payload.
	Produced func(topic string, msg *message.Message) string

	// OrderKey returns the order key of a published message, or "" if its order does not matter.
	// Without OrderKey, no order matters.
	OrderKey func(topic string, msg *message.Message) string

	// InFlight is how many unanswered messages the broker hands out at once. Defaults to 1,
	// which makes the plays repeatable.
	InFlight int

	// TablePrefix must be that of the service's inbox.Config. Defaults to "millrace_". The schema is that of the DSN: a
	// service with an inbox.Config.Schema needs it as the search_path there.
	TablePrefix string

	// Namespace must be that of the service's inbox.Config.
	Namespace string

	// Outside names the tables that a handler may write to outside of its transaction, with their schema or without,
	// in any case.
	Outside []string

	// Slow is the longest time for which an answer of the database is held back; it ends earlier if
	// the caller gives up. It must be longer than the Timeout that Service gives the inbox, which
	// should be as short as the handler allows. Defaults to 1 second.
	Slow time.Duration

	// Patience is how long a play may take before it counts as stuck. On a busy machine it may take longer,
	// up to ten times. Defaults to 20 seconds.
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
		problem("Service is required: it wires the service with what a Process provides")
	}
	if s.Ledger == nil {
		problem("Ledger is required: it reads the effects of the service")
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
