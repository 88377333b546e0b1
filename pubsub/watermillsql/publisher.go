package watermillsql

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/outbox"
)

// Publisher writes messages into the tables that watermill-sql/v3 reads. It is safe for
// concurrent use, and an outbox.Relay can publish through it.
type Publisher struct {
	db       *sqlx.DB
	database *database
	config   Config

	mu     sync.RWMutex // each Publish holds it for reading, so that Close waits
	closed bool
	tables sync.Map // topic → table
}

// NewPublisher returns a Publisher on a pool. There is none on a transaction: use an outbox to
// publish with a transaction.
func NewPublisher(db *sqlx.DB, config Config) (*Publisher, error) {
	if db == nil {
		return nil, errors.New("watermillsql: NewPublisher needs a *sqlx.DB")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	d, err := detect(db, config.Dialect)
	if err != nil {
		return nil, err
	}
	return &Publisher{db: db, database: d, config: config}, nil
}

// Initialize makes the missing tables of the topics. It is idempotent, and several processes may
// call it at once. Call it when a service starts, and not in a transaction: MySQL would commit
// that.
func (p *Publisher) Initialize(ctx context.Context, topics ...string) error {
	if err := p.database.initialize(ctx, p.db, topics); err != nil {
		return errorf("initialize: %w", err)
	}
	p.config.Logger.Debug("The tables of the topics exist", watermill.LogFields{"topics": topics})
	return nil
}

// Publish stores the messages under topic, all or none of them, in their order, and returns when
// they are committed. Without messages it does nothing. It gives up when the context of the first
// message ends, or after Config.Timeout; the messages may be stored all the same, and publishing
// them again makes copies with the same UUIDs.
//
// For a message that the table cannot take, the error is [outbox.ErrPermanent]. If the call has
// other messages too, the error is an [outbox.PartialError] and none is stored; the others may be
// published without it.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return ErrClosed
	}
	if err := p.database.checkTopic(topic); err != nil {
		return errorf("publish: %w", outbox.Permanent(err))
	}
	if len(msgs) == 0 {
		return nil
	}
	for n, msg := range msgs {
		if msg == nil {
			return fmt.Errorf("watermillsql: publish to topic %q: message %d of %d is nil", topic, n+1, len(msgs))
		}
	}
	ctx, cancel := context.WithTimeout(msgs[0].Context(), p.config.Timeout)
	defer cancel()
	if err := p.publish(ctx, topic, msgs); err != nil {
		p.tables.Delete(topic) // someone may alter the table before the next call
		return errorf("publish to topic %q: %w", topic, err)
	}
	return nil
}

// Close waits for running calls of Publish; later ones fail with [ErrClosed]. The pool stays open.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

func (p *Publisher) publish(ctx context.Context, topic string, msgs []*message.Message) error {
	t, err := p.table(ctx, topic)
	if errors.Is(err, ErrTopic) {
		return outbox.Permanent(err)
	}
	if err != nil {
		return err
	}
	if t.payload.kind == p.database.padded {
		return fmt.Errorf("the column payload has type %s, which lengthens payloads; this makes it take any bytes: %s",
			t.payload.kind, p.database.remedy(topic, "payload", p.database.blob))
	}
	rows, err := p.database.encode(topic, t, msgs)
	if err != nil {
		return err
	}
	err = p.insert(ctx, topic, p.database.split(topic, t, rows))
	if err != nil && !t.binary {
		return fmt.Errorf("%w; the column payload has type %s, this makes it take any bytes: %s",
			err, t.payload.kind, p.database.remedy(topic, "payload", p.database.blob))
	}
	return err
}

// table looks at the topic's tables once.
func (p *Publisher) table(ctx context.Context, topic string) (table, error) {
	if known, found := p.tables.Load(topic); found {
		return known.(table), nil
	}
	t, err := p.database.inspect(ctx, p.db, topic)
	if err == nil {
		p.tables.Store(topic, t)
	}
	return t, err
}

// insert runs the statements: several of them, or where publishers take turns, in a transaction.
func (p *Publisher) insert(ctx context.Context, topic string, statements []statement) error {
	if turn := p.database.turn; turn != "" {
		statements = append([]statement{{query: fmt.Sprintf(turn, p.database.offsets(topic))}}, statements...)
	}
	if len(statements) == 1 {
		_, err := p.db.ExecContext(ctx, statements[0].query, statements[0].args...)
		return err
	}
	tx, err := owned.Begin(ctx, p.db, nil, false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	for _, s := range statements {
		if err := s.run(ctx, tx); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// run runs s. One that is prepared sends the arguments apart from its text, also where the driver would put them into it
// (interpolateParams): MySQL cuts the connection of who sends more than a packet.
func (s statement) run(ctx context.Context, tx *owned.Tx) error {
	if !s.prepared {
		_, err := tx.ExecContext(ctx, s.query, s.args...)
		return err
	}
	prepared, err := tx.PrepareContext(ctx, s.query)
	if err != nil {
		return err
	}
	defer prepared.Close() //nolint:errcheck // it ends with the connection, if not here
	_, err = prepared.ExecContext(ctx, s.args...)
	return err
}
