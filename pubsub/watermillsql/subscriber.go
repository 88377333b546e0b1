package watermillsql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Subscriber is watermill-sql/v3's subscriber with settings that are safe beside an inbox.
// It is safe for concurrent use. Each subscription holds a connection of the pool while a
// message is handled.
type Subscriber struct {
	db       *sqlx.DB
	database *database
	group    string
	inner    *wmsql.Subscriber

	ended context.Context //nolint:containedctx // of all subscriptions
	end   context.CancelFunc

	mu       sync.RWMutex // watermill-sql's own flags race with each other
	closed   bool
	channels sync.Map // those that Subscribe returned
	once     sync.Once
	err      error
}

// NewSubscriber returns a Subscriber on a pool. It reports all problems of config at once.
func NewSubscriber(db *sqlx.DB, config SubscriberConfig) (*Subscriber, error) {
	if db == nil {
		return nil, errors.New("watermillsql: NewSubscriber needs a *sqlx.DB")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	d, err := detect(db, config.Dialect)
	if err != nil {
		return nil, err
	}
	inner, err := wmsql.NewSubscriber(db, wmsql.SubscriberConfig{
		ConsumerGroup:  config.ConsumerGroup,
		AckDeadline:    &config.AckDeadline,
		PollInterval:   config.PollInterval,
		ResendInterval: config.ResendInterval,
		RetryInterval:  config.RetryInterval,
		BackoffManager: backoff{poll: config.PollInterval, retry: config.RetryInterval},
		SchemaAdapter:  d.schema(config.BatchSize),
		OffsetsAdapter: d.offsetAdapter,
	}, config.Logger)
	if err != nil {
		return nil, fmt.Errorf("watermillsql: %w", err)
	}
	s := &Subscriber{db: db, database: d, group: config.ConsumerGroup, inner: inner}
	s.ended, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Initialize makes the missing tables of the topics, as [Publisher.Initialize] does.
func (s *Subscriber) Initialize(ctx context.Context, topics ...string) error {
	if err := s.database.initialize(ctx, s.db, topics); err != nil {
		return errorf("initialize: %w", err)
	}
	return nil
}

// SubscribeInitialize is Initialize for one topic. It implements message.SubscribeInitializer.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return s.Initialize(context.Background(), topic)
}

// Subscribe delivers the messages of topic, from the first that the consumer group has not acked,
// one after the other, until ctx ends or the Subscriber is closed. It returns [ErrNoTable] for a
// topic without tables, which on MySQL watermill-sql would notice only in the background.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	if err := s.database.checkTopic(topic); err != nil {
		return nil, errorf("subscribe: %w", err)
	}
	if _, err := s.database.inspect(ctx, s.db, topic); err != nil {
		return nil, errorf("subscribe to topic %q: %w", topic, err)
	}
	if err := s.database.enrollGroup(ctx, s.db, topic, s.group); err != nil {
		return nil, errorf("subscribe to topic %q: %w", topic, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ended, cancel) //nolint:contextcheck // it ends with either
	messages, err := s.inner.Subscribe(ctx, topic)
	if err != nil {
		stop()
		cancel()
		return nil, errorf("subscribe to topic %q: %w", topic, err)
	}
	s.channels.Store(messages, nil)
	context.AfterFunc(ctx, func() {
		stop()
		for range messages { // until it is closed
		}
		s.channels.Delete(messages)
	})
	return messages, nil
}

// Close ends all subscriptions and, unlike watermill-sql's, waits until their channels are closed.
// Messages that were not acked are redelivered. It also waits for the end of a pause after a nack:
// ResendInterval at most. The pool stays open.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.once.Do(func() {
		defer s.end() // the contexts of callers keep nothing of what has ended
		// A subscription waits in the database while another one of its group handles a message:
		// on MySQL for up to innodb_lock_wait_timeout.
		defer time.AfterFunc(lastAck, s.end).Stop()
		s.err = s.inner.Close()
		s.channels.Range(func(channel, _ any) bool {
			for range channel.(<-chan *message.Message) { // until it is closed
			}
			return true
		})
	})
	return s.err
}

// lastAck is how long a Subscriber that closes waits for acks on their way.
const lastAck = 500 * time.Millisecond

// backoff recognises deadlocks by the database's code. watermill-sql searches the text, and reports
// it as an error when a waiting consumer on MySQL times out after 50 seconds.
type backoff struct{ poll, retry time.Duration }

func (b backoff) HandleError(log watermill.LoggerAdapter, empty bool, err error) time.Duration {
	switch {
	case err == nil && empty:
		return b.poll
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled): // the subscription ends
		return b.retry
	case dialect.Classify(err) == dialect.Contention:
		log.Debug("Another consumer of the group was faster", watermill.LogFields{"error": err.Error()})
		return rand.N(min(b.retry, contention)) //nolint:gosec // spreads load
	}
	log.Error("Cannot query for messages", err, watermill.LogFields{"wait_time": b.retry})
	return b.retry
}

// contention bounds the pause after a lost race.
const contention = 20 * time.Millisecond
