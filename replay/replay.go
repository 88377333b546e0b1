package replay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/steady"
)

var (
	// ErrSideEffects says that messages would reach a consumer that refuses replays, and that
	// the request does not name it.
	ErrSideEffects = errors.New("a consumer that refuses replayed messages would get them: name it in IntoSideEffects if that is meant")

	// ErrNotFound says that there is no replay with this name.
	ErrNotFound = errors.New("no such replay")

	// ErrTaken says that another process goes on with the replay.
	ErrTaken = errors.New("another process sends this replay")

	// ErrCancelled says that an operator has ended the replay.
	ErrCancelled = errors.New("the replay was cancelled: begin another one under another name")

	// ErrOther says that there is a replay with this name that sends something else.
	ErrOther = errors.New("there is a replay of this name that was asked for otherwise: choose another name")
)

// Config is where the tables are, as in the Config of the inbox.
type Config struct {
	Dialect     string
	Schema      string
	TablePrefix string // defaults to "millrace_"
	Namespace   string

	// Logger hears when replays begin and end, and what is skipped. Defaults to none.
	Logger watermill.LoggerAdapter
}

// Replayer runs replays, and keeps in the database how far each is. It is safe for concurrent
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
	if config.Logger == nil {
		config.Logger = watermill.NopLogger{}
	}
	config.Logger = steady.Logger(config.Logger, nil)
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

// Filter says which messages of a source are meant. Fields that are zero match all.
type Filter struct {
	Topic string `json:"topic,omitempty"`

	// Consumer and Epoch are for the journal, where Consumer is required. A nil Epoch is the newest
	// that has kept a message when the replay begins.
	Consumer string `json:"consumer,omitempty"`
	Epoch    *int   `json:"epoch,omitempty"`

	// Since and Until bound when a message was stored in the outbox, or handled; the end is not
	// part of it.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// IDs are the UUIDs of messages, or, in a journal, their keys. All that the other fields match is read to find them.
	IDs []string `json:"ids,omitempty"`
}

// Request is a replay: what is sent again, where to, and who wants it.
type Request struct {
	Name   string // which the messages bear, and by which it is gone on with; at most 200 bytes
	From   Source
	Filter Filter
	To     Target
	By     admin.Operator

	// PerSecond is how many messages are sent in a second at most. Defaults to 1000.
	PerSecond int

	// IntoSideEffects names consumers with inbox.ReplayRefuse that the messages may reach. One whose
	// own queue is the target handles them; one that gets them from a topic parks them.
	IntoSideEffects []string

	// Progress is told, after each batch, how far it is. Defaults to nobody.
	Progress func(Status)
}

const maxName = 200

func (r *Request) validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.Name == "" || len(r.Name) > maxName {
		problem("Name %.20q must have 1 to %d bytes: the replay is gone on with by it", r.Name, maxName)
	}
	if r.From == nil {
		problem("From is required: replay.Archive or replay.Journal")
	}
	if r.To == nil {
		problem("To is required: replay.Outbox, replay.Queue or replay.Publisher")
	}
	if r.PerSecond < 0 {
		problem("PerSecond %d is negative", r.PerSecond)
	}
	if r.By.Name == "" || r.By.Reason == "" {
		problem("By needs a Name and a Reason, which are kept")
	}
	if !r.Filter.Since.IsZero() && !r.Filter.Until.IsZero() && !r.Filter.Since.Before(r.Filter.Until) {
		problem("Filter: Since %v is not before Until %v", r.Filter.Since, r.Filter.Until)
	}
	return errors.Join(problems...)
}

func (r *Request) setDefaults() {
	if r.PerSecond == 0 {
		r.PerSecond = 1000
	}
}
