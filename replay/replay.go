package replay

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/prefix"
	"github.com/millrace-go/millrace/internal/steady"
)

// Conditions a caller may branch on, with errors.Is.
var (
	// ErrSideEffects says that messages would reach a consumer that refuses replays, and that
	// the request does not name it.
	ErrSideEffects = errors.New("replay: a consumer that refuses replayed messages would get them: name it in IntoSideEffects to allow that")

	// ErrNotFound says that there is no replay with this name.
	ErrNotFound = errors.New("replay: no such replay")

	// ErrTaken says that another process is running the replay.
	ErrTaken = errors.New("replay: another process is running this replay")

	// ErrCancelled says that an operator has cancelled the replay.
	ErrCancelled = errors.New("replay: the replay was cancelled: start a new one under another name")

	// ErrOther says that a replay with this name exists whose request was another.
	ErrOther = errors.New("replay: a replay with this name exists, and its request was another: choose another name")
)

// errorf is [prefix.Errorf] for this package.
func errorf(format string, args ...any) error { return prefix.Errorf("replay", format, args...) }

// Config says where the tables are, as the Config of the inbox does.
type Config struct {
	Dialect     string
	Schema      string
	TablePrefix string // defaults to "millrace_"
	Namespace   string

	// Logger gets a line when a replay begins, when it stops, and for each message that it skips.
	// Defaults to slog.Default.
	Logger watermill.LoggerAdapter
}

// Replayer runs replays, and keeps the progress of each in the database. It is safe for concurrent
// use.
type Replayer struct {
	db        *database.DB
	store     *inbox.Store
	namespace []byte
	log       watermill.LoggerAdapter
}

// New returns a Replayer on the tables of store, with the same pool.
func New(db *sqlx.DB, store *inbox.Store, config Config) (*Replayer, error) {
	if db == nil || store == nil {
		return nil, errors.New("replay: a *sqlx.DB and an *inbox.Store are required")
	}
	if config.TablePrefix == "" {
		config.TablePrefix = dialect.DefaultPrefix
	}
	config.Logger = steady.Logger(steady.Default(config.Logger), nil)
	names := dialect.Names{Schema: config.Schema, Prefix: config.TablePrefix}
	if err := errors.Join(names.Problems(config.Dialect)...); err != nil {
		return nil, fmt.Errorf("replay: invalid Config: %w", err)
	}
	pool, err := database.Open(db, config.Dialect, names)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return &Replayer{db: pool, store: store, namespace: []byte(config.Namespace), log: config.Logger}, nil
}

// Filter selects messages of a source. Zero fields match all.
type Filter struct {
	Topic string `json:"topic,omitempty"`

	// Consumer and Epoch are for the journal, which requires Consumer. A nil Epoch means the newest
	// one of which the journal has a message when the replay begins.
	Consumer string `json:"consumer,omitempty"`
	Epoch    *int   `json:"epoch,omitempty"`

	// Since and Until bound when a message was stored in the outbox, or handled; Until is
	// exclusive.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// IDs are the UUIDs of messages or, in a journal, their keys. To find them, a replay reads
	// everything that the other fields match.
	IDs []string `json:"ids,omitempty"`
}

// Request is a replay: which messages to send again, where to, and who asks for it.
type Request struct {
	Name   string // marks the messages, and identifies the replay to continue; at most 200 bytes
	From   Source
	Filter Filter
	To     Target
	By     admin.Operator

	// PerSecond is how many messages to send per second, at most. Defaults to 1000.
	PerSecond int

	// IntoSideEffects names consumers with inbox.ReplayRefuse that the messages may reach. A consumer
	// whose own queue is the target handles them; one that gets them from a topic parks them.
	IntoSideEffects []string

	// Progress is called after each batch. Defaults to nothing.
	Progress func(Status)

	ids map[string]bool // Filter.IDs, also as a journal shows them
}

const maxName = 200

func (r *Request) validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.Name == "" || len(r.Name) > maxName {
		problem("Name %.20q must have 1 to %d bytes: it identifies the replay", r.Name, maxName)
	}
	switch r.From {
	case nil:
		problem("From is required: replay.Archive or replay.Journal")
	case archive{}:
		problem("From: replay.Archive was given no *outbox.Publisher")
	case journal{}:
		problem("From: replay.Journal was given no *inbox.Store")
	}
	switch r.To {
	case nil:
		problem("To is required: replay.Outbox, replay.Queue or replay.Publisher")
	case toOutbox{}:
		problem("To: replay.Outbox was given no *outbox.Publisher")
	case toQueue{}:
		problem("To: replay.Queue was given no *inbox.Queue")
	case toPublisher{}:
		problem("To: replay.Publisher was given no message.Publisher")
	}
	if r.PerSecond < 0 {
		problem("PerSecond %d is negative", r.PerSecond)
	}
	if r.By.Name == "" || r.By.Reason == "" {
		problem("By needs a Name and a Reason, which the audit table keeps")
	}
	if !r.Filter.Since.IsZero() && !r.Filter.Until.IsZero() && !r.Filter.Since.Before(r.Filter.Until) {
		problem("Filter: Since %v is not before Until %v", r.Filter.Since, r.Filter.Until)
	}
	inJSON := func(name string, at time.Time) {
		if year := at.UTC().Year(); year < 0 || year > 9999 {
			problem("Filter: %s %v is outside of the years 0 to 9999", name, at)
		}
	}
	inJSON("Since", r.Filter.Since)
	inJSON("Until", r.Filter.Until)
	for _, id := range r.Filter.IDs {
		if !utf8.ValidString(id) {
			problem("Filter: IDs: %q is not UTF-8: name the message by its UUID", id)
		}
	}
	return errors.Join(problems...)
}

func (r *Request) setDefaults() {
	r.ids = make(map[string]bool, 2*len(r.Filter.IDs))
	for _, id := range r.Filter.IDs {
		r.ids[id], r.ids[keycode.String(keycode.Encode(id))] = true, true
	}
	if r.PerSecond == 0 {
		r.PerSecond = 1000
	}
}
