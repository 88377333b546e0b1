package inbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
)

// maxName is the length of the longest consumer name, so that every database can index it.
const maxName = 255

// OnCollision is what happens to a message that has the key of another one but a payload
// of its own.
type OnCollision int

// What can happen on a collision.
const (
	// CollisionDefault parks where the key is the message's own id, where a collision is
	// somebody's mistake, and drops where it is a business key, which exists to collapse
	// different messages.
	CollisionDefault OnCollision = iota
	// CollisionPark stores the newcomer for an operator, once per payload, and acks it.
	CollisionPark
	// CollisionDrop acks the newcomer as a duplicate. It is counted.
	CollisionDrop
	// CollisionFail returns ErrCollision, of which FailedObserver is told.
	CollisionFail
)

// BeginFunc runs at the beginning of a handler's transaction.
type BeginFunc func(ctx context.Context, tx *sqlx.Tx, msg *message.Message) error

// ConsumerConfig is how one consumer claims its messages. middleware.Inbox fills it in;
// its fields of the same names say what each is for and what it defaults to.
type ConsumerConfig struct {
	Name           string
	Handler        string
	Epoch          int
	Key            Key
	FormerKey      Key
	Outbox         message.Publisher
	Timeout        time.Duration
	TwinWait       time.Duration
	MaxInFlight    int
	Retention      time.Duration
	Window         time.Duration
	OnCollision    OnCollision
	Fingerprint    func(*message.Message) ([]byte, error)
	MessageTime    func(*message.Message) (time.Time, bool)
	ClockSkew      time.Duration
	Redelivered    func(*message.Message) bool
	Describe       func(*message.Message) (eventType, eventVersion string)
	Before         func(*message.Message) error
	BeforeTimeout  time.Duration
	OnBegin        BeginFunc
	RequireTx      bool
	RecordFailures bool
	OnReplay       ReplayRule
	Journal        bool
}

func (c *ConsumerConfig) setDefaults() {
	if c.Timeout == 0 {
		c.Timeout = 25 * time.Second
	}
	if c.BeforeTimeout == 0 {
		c.BeforeTimeout = c.Timeout
	}
	if c.TwinWait == 0 {
		c.TwinWait = 5 * time.Second
	}
	if c.Retention == 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	if c.OnCollision == CollisionDefault {
		c.OnCollision = CollisionDrop
		if c.Key.withDefault().own {
			c.OnCollision = CollisionPark
		}
	}
	if c.MessageTime == nil {
		c.MessageTime = messageTime
	}
	if c.ClockSkew == 0 {
		c.ClockSkew = 5 * time.Minute
	}
	if c.Redelivered == nil {
		c.Redelivered = Redelivered
	}
	if c.Describe == nil {
		c.Describe = describe
	}
	c.Key = c.Key.withDefault()
}

// Validate returns every problem of c at once, except that Name may still be missing.
func (c ConsumerConfig) Validate() error {
	c.setDefaults()
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(c.Name) > maxName {
		problem("Consumer %.20q… is longer than %d bytes: choose a shorter name", c.Name, maxName)
	}
	if strings.HasPrefix(c.Name, leaseNames) {
		problem("Consumer %q begins like the consumers of leases", c.Name)
	}
	if c.Epoch < 0 {
		problem("Epoch %d is negative", c.Epoch)
	}
	if c.FormerKey.of != nil && c.Epoch == 0 {
		problem("FormerKey is the key of the epoch before, and Epoch is 0: raise Epoch by 1 where Key changes")
	}
	if c.FormerKey.of != nil && c.FormerKey.source == c.Key.source {
		problem("FormerKey and Key are the same, %s: FormerKey is what Key was in epoch %d", c.Key.source, c.Epoch-1)
	}
	if c.Timeout < 0 {
		problem("Timeout %v is negative", c.Timeout)
	}
	if c.BeforeTimeout < 0 {
		problem("BeforeTimeout %v is negative", c.BeforeTimeout)
	}
	if c.TwinWait < 0 {
		problem("TwinWait %v is negative", c.TwinWait)
	}
	if c.MaxInFlight < 0 {
		problem("MaxInFlight %d is negative", c.MaxInFlight)
	}
	if c.Retention != Forever && c.Retention < MinRetention {
		problem("Retention %v is below %v, the least that makes sense; inbox.Forever keeps all", c.Retention, MinRetention)
	}
	if c.Window < 0 {
		problem("Window %v is negative", c.Window)
	}
	if c.ClockSkew < 0 {
		problem("ClockSkew %v is negative", c.ClockSkew)
	}
	if c.OnCollision < CollisionDefault || c.OnCollision > CollisionFail {
		problem("OnCollision %d is none of the constants", c.OnCollision)
	}
	if c.OnReplay < ReplayAllow || c.OnReplay > ReplayRefuse {
		problem("OnReplay %d is none of the constants", c.OnReplay)
	}
	return errors.Join(problems...)
}

// Consumer is one reader of messages, known by its name and epoch in the Store's
// namespace. It is safe for concurrent use.
type Consumer struct {
	store  *Store
	config ConsumerConfig
	prefix string        // of keys in memory
	tally  *tally        // of what it does
	slots  chan struct{} // nil without a bound of its own

	reread      reread
	gaps        gaps
	registering sync.Mutex
	registered  atomic.Pointer[registration]

	pace            pace // of what is refused
	warnedForgotten sync.Once
	warnedUnguarded sync.Once
	warnedFormer    sync.Once
	formerOver      sync.Once
	formerShared    atomic.Bool // a former key was met that another message of this epoch has as well

	former *Consumer // the epoch before, under whose key messages are looked for as well; nil: none
	heir   *Consumer // whose former this is
}

type consumerName struct {
	name  string
	epoch int
}

// prefix is what the consumer's keys begin with in memory.
func (n consumerName) prefix() string { return fmt.Sprintf("%s\x00%d\x00", n.name, n.epoch) }

// registration is what the database knows of the consumer.
type registration struct {
	id         int32
	generation int64
}

// Consumer returns the consumer that config names, with these settings. A second handler
// under one name is refused, since the two would take each other's messages for duplicates.
func (s *Store) Consumer(config ConsumerConfig) (*Consumer, error) {
	if config.Name == "" {
		return nil, errors.New("inbox: a consumer needs a name: set Consumer, or run inside a Watermill router, " +
			"whose handler's name is taken")
	}
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("inbox: consumer %q: %w", config.Name, err)
	}
	given := config
	config.setDefaults()
	c, err := s.enrol(config)
	if err == nil {
		c.former = s.former(given, c)
		s.declare(&config)
	}
	return c, err
}

func (s *Store) enrol(config ConsumerConfig) (*Consumer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := consumerName{config.Name, config.Epoch}
	if known := s.consumers[name]; known != nil {
		if known.config.Handler == "" || config.Handler == "" { // a stored message need not know it
			config.Handler += known.config.Handler
		}
		if known.config.Handler != "" && known.config.Handler != config.Handler {
			return nil, fmt.Errorf("inbox: consumer %q is used by two handlers, %q and %q, which would take each "+
				"other's messages for duplicates: give each its own Consumer", config.Name, known.config.Handler, config.Handler)
		}
		if known.config.Key.source != config.Key.source {
			return nil, fmt.Errorf("inbox: consumer %q: %w from %s to %s: give it a new Epoch",
				config.Name, ErrKeyChanged, known.config.Key.source, config.Key.source)
		}
	}
	c := &Consumer{store: s, config: config, prefix: name.prefix(), tally: s.tallies.of(name)}
	if config.MaxInFlight > 0 {
		c.slots = make(chan struct{}, config.MaxInFlight)
	}
	s.consumers[name] = c
	return c, nil
}

// slot waits for the right to hold a transaction: the consumer's, then the store's. It is
// taken with the turn of a key already in hand, so copies that wait for it take no slots.
func (c *Consumer) slot(ctx context.Context) (leave func(), err error) {
	if c.slots == nil {
		return c.store.slot(ctx)
	}
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leaveStore, err := c.store.slot(ctx)
	if err != nil {
		<-c.slots
		return nil, err
	}
	return func() {
		leaveStore()
		<-c.slots
	}, nil
}

// consumerRow is a row of the consumers table.
type consumerRow struct {
	ID        int32      `db:"id"`
	Namespace []byte     `db:"namespace"`
	Name      []byte     `db:"name"`
	Epoch     int        `db:"epoch"`
	KeySource []byte     `db:"key_source"`
	Retention int64      `db:"retention"`
	Window    int64      `db:"window_us"`
	PurgeLine int64      `db:"purge_line"`
	Paused    bool       `db:"paused"`
	CreatedAt int64      `db:"created_at"`
	PurgedAt  int64      `db:"purged_at"` // 0: never
	OnReplay  ReplayRule `db:"on_replay"`
	Served    bool       `db:"served"` // a queue delivers what is stored for it, in some process
}

// registerWait bounds the statements of a registration, for which others wait.
const registerWait = 10 * time.Second

// register returns the consumer's row, made on first use and asked for again after a
// connection was lost.
func (c *Consumer) register(ctx context.Context) (registration, error) {
	generation := c.store.generation.Load()
	if r := c.registered.Load(); r != nil && r.generation == generation {
		return *r, nil
	}
	c.registering.Lock()
	defer c.registering.Unlock()
	if r := c.registered.Load(); r != nil && r.generation == generation {
		return *r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, registerWait)
	defer cancel()
	row, err := c.findOrInsert(ctx)
	if err != nil {
		return registration{}, err
	}
	if err := c.sameKey(row); err != nil {
		return registration{}, err
	}
	c.formerIsOver(row)
	if row.Retention != c.retention() || row.Window != c.config.Window.Microseconds() || row.OnReplay != c.config.OnReplay {
		err := c.store.write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, c.store.dialect.UpdateConsumer,
				c.retention(), c.config.Window.Microseconds(), c.config.OnReplay, row.ID)
			return err
		})
		if err != nil {
			return registration{}, fmt.Errorf("record the settings: %w", err)
		}
	}
	r := registration{id: row.ID, generation: generation}
	c.registered.Store(&r)
	return r, nil
}

// sameKey refuses another key than the consumer had before.
func (c *Consumer) sameKey(row consumerRow) error {
	source, epoch := c.config.Key.source, c.config.Epoch
	switch {
	case string(row.KeySource) == source:
		return nil
	case c.heir != nil:
		return fmt.Errorf("%w: FormerKey is %s, and epoch %d has %s: give FormerKey that one",
			ErrKeyChanged, source, epoch, row.KeySource)
	}
	return fmt.Errorf("%w from %s to %s: what it has seen was recorded under the old key, "+
		"so set Epoch to %d to begin anew, with FormerKey to forget nothing, or put the old key back",
		ErrKeyChanged, row.KeySource, source, epoch+1)
}

// Verify returns what would make every message of the consumer that config names fail: a
// wrong setting, or another key than it had before. It registers nothing, and logs a Retention that is short
// for the Window.
func (s *Store) Verify(ctx context.Context, config ConsumerConfig) error {
	if err := config.Validate(); err != nil {
		return fmt.Errorf("inbox: consumer %q: %w", config.Name, err)
	}
	given := config
	config.setDefaults()
	s.declare(&config)
	c := &Consumer{store: s, config: config}
	for _, c := range []*Consumer{c, s.former(given, c)} {
		if err := c.verify(ctx); err != nil {
			return fmt.Errorf("inbox: consumer %q: %w", config.Name, explain(err))
		}
	}
	return nil
}

// verify returns an error if the consumer had another key before.
func (c *Consumer) verify(ctx context.Context) error {
	if c == nil {
		return nil
	}
	row, err := c.find(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.sameKey(row)
}

// maxProbes bounds the search for a free id: each probe finds one taken with a chance of
// one in two thousand million.
const maxProbes = 8

func (c *Consumer) findOrInsert(ctx context.Context) (consumerRow, error) {
	s := c.store
	row, err := c.find(ctx)
	for probe := 0; errors.Is(err, sql.ErrNoRows) && probe < maxProbes; probe++ {
		err = s.write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, s.dialect.InsertConsumer,
				consumerID(s.config.Namespace, c.config.Name, c.config.Epoch, probe),
				[]byte(s.config.Namespace), []byte(c.config.Name), c.config.Epoch,
				[]byte(c.config.Key.source), c.retention(), c.config.Window.Microseconds(), c.config.OnReplay)
			return err
		})
		if err == nil {
			row, err = c.find(ctx)
		}
	}
	if err != nil {
		return row, fmt.Errorf("register the consumer: %w", err)
	}
	return row, nil
}

func (c *Consumer) find(ctx context.Context) (consumerRow, error) {
	var row consumerRow
	s := c.store
	err := sqlx.GetContext(ctx, s.reader(ctx), &row, s.dialect.SelectConsumer,
		[]byte(s.config.Namespace), []byte(c.config.Name), c.config.Epoch)
	return row, err
}

// consumerID is a number made of what it stands for. A consumer whose row was lost, by a
// failover to a replica that lagged behind, gets the same one again, so a claim written
// under it in between can never count for another consumer.
func consumerID(namespace, name string, epoch, probe int) int32 {
	h := sha256.New()
	for _, part := range []string{namespace, name} {
		h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	h.Write(binary.AppendVarint(nil, int64(epoch)))
	h.Write(binary.AppendVarint(nil, int64(probe)))
	return max(int32(binary.BigEndian.Uint32(h.Sum(nil))&0x7fffffff), 1) //nolint:gosec // masked
}

// retention in microseconds as it is stored: 0 keeps for ever.
func (c *Consumer) retention() int64 {
	if c.config.Retention == Forever {
		return 0
	}
	return c.config.Retention.Microseconds()
}

func (c *Consumer) name() consumerName { return consumerName{c.config.Name, c.config.Epoch} }

// Name returns the consumer's name.
func (c *Consumer) Name() string { return c.config.Name }
