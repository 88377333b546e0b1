package process

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql" // registers "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
)

// serviceName is the service's among the programs that the test binary can be.
const serviceName = "SERVICE"

// Main runs the service and ends the process, if this process was started to be one.
// Otherwise it returns at once.
func Main() { As(serviceName, serve) }

// errFirst is what the first run of a delivery with FailFirst returns.
var errFirst = errors.New("the first run fails")

// service is a router with one handler.
type service struct {
	*Child
	settings Settings
	goOn     chan struct{}
	feed     chan *message.Message
	counts   counts

	mu       sync.Mutex
	stops    map[string]Point            // by message
	handed   map[string]*message.Message // the last copy of each
	failing  map[string]bool
	settling bool
}

func serve(c *Child, settings Settings) error {
	s := &service{
		Child: c, settings: settings, goOn: make(chan struct{}), feed: make(chan *message.Message),
		stops: map[string]Point{}, handed: map[string]*message.Message{}, failing: map[string]bool{},
	}
	plain, err := sqlx.Open(s.settings.Driver, s.settings.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }() // it lent its driver only
	pool := faults.Over(plain, s.settings.DSN)
	pool.SetMaxOpenConns(s.settings.Pool)
	pool.SetMaxIdleConns(s.settings.Pool)
	pool.Set(faults.Plan{Before: s.before, After: s.after})

	store, err := inbox.NewStore(pool.DB, inbox.Config{
		Logger: watermill.NewStdLoggerWithOut(os.Stderr, false, false), Observers: []inbox.Observer{&s.counts},
	})
	if err != nil {
		return err
	}
	router, err := s.router(store)
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return fmt.Errorf("the router did not start: %w", err)
	}
	s.Say(Event{Kind: Ready})
	if err := s.obey(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err = errors.Join(router.Close(), <-stopped, store.Close(ctx), pool.Close())
	s.Closed(err, s.counts.all())
	return nil
}

func (s *service) router(store *inbox.Store) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(s.tellErrors, millrace.Inbox{
		Store: store, Timeout: s.settings.Timeout,
		Options: inbox.Options{
			TwinWait: s.settings.TwinWait,
			OnBegin: func(ctx context.Context, _ *sqlx.Tx, _ *message.Message) error {
				s.reach(ctx, AfterClaim)
				return nil
			},
		},
	}.Middleware)
	router.AddPlugin(store.Plugin())
	if s.settings.Produce > 0 {
		router.AddHandler("billing", "orders", subscriber{s}, "invoices", publisher{s}, s.handle)
	} else {
		router.AddConsumerHandler("billing", "orders", subscriber{s}, func(msg *message.Message) error {
			_, err := s.handle(msg)
			return err
		})
	}
	return router, nil
}

// obey follows the test's orders until it says to close. A test that is gone ends it too.
func (s *service) obey() error {
	for {
		o, err := s.Order()
		if err != nil {
			return err
		}
		switch o.Do {
		case ToDeliver:
			s.deliver(o.Delivery)
		case ToGoOn:
			select {
			case s.goOn <- struct{}{}:
			case <-time.After(30 * time.Second):
				return errors.New("told to go on, but nothing had stopped")
			}
		case ToClose:
			return nil
		}
	}
}

func (s *service) deliver(d Delivery) {
	s.mu.Lock()
	if d.Stop != "" {
		s.stops[d.UUID] = d.Stop
	}
	s.failing[d.UUID] = d.FailFirst
	s.mu.Unlock()
	for range max(d.Copies, 1) {
		msg := d.Copy()
		s.mu.Lock()
		s.handed[d.UUID] = msg
		s.mu.Unlock()
		go s.Hand(msg, func(msg *message.Message) { s.feed <- msg })
	}
}

// handle has an effect, and returns messages that no other run would return.
func (s *service) handle(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	if err := rig.Exec(ctx, `INSERT INTO effects (uuid, consumer) VALUES (?, ?)`, hex.EncodeToString([]byte(msg.UUID)), message.HandlerNameFromCtx(ctx)); err != nil {
		return nil, err
	}
	s.reach(ctx, InHandler)
	if s.firstRun(msg.UUID) {
		s.stop(FirstRun, msg.UUID)
		return nil, errFirst
	}
	produced := make([]*message.Message, s.settings.Produce)
	for i := range produced {
		produced[i] = message.NewMessage(watermill.NewUUID(), []byte("\x00\xff"+rand.Text()))
		produced[i].Metadata = message.Metadata{"for": msg.UUID, "number": strconv.Itoa(i), "run": rand.Text()}
	}
	return produced, nil
}

// firstRun reports whether no service of the test has run the message before, if it is one
// that is to fail then.
func (s *service) firstRun(uuid string) bool {
	s.mu.Lock()
	failing := s.failing[uuid]
	s.mu.Unlock()
	if !failing {
		return false
	}
	mark, err := os.OpenFile(filepath.Join(s.settings.Marks, uuid), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	return mark.Close() == nil
}

func (s *service) tellErrors(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		if err != nil {
			s.Say(Event{Kind: Failed, UUID: msg.UUID, Error: err.Error()})
		}
		return out, err
	}
}

// subscriber hands over what the test delivers.
type subscriber struct{ *service }

func (s subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case msg := <-s.feed:
				msg.SetContext(context.WithValue(ctx, messageKey{}, msg.UUID))
				out <- msg
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (subscriber) Close() error { return nil }

// publisher gives the test what the router publishes: then the broker has it.
type publisher struct{ *service }

func (p publisher) Publish(_ string, msgs ...*message.Message) error {
	source := msgs[0].Metadata["for"]
	p.reachFor(source, BeforePublish)
	for i, m := range msgs {
		if i > 0 {
			p.reachFor(source, MidPublish)
		}
		p.Say(Event{Kind: Published, UUID: source, Published: &Message{m.UUID, m.Metadata, m.Payload}})
	}
	p.reachFor(source, AfterPublish)
	return nil
}

func (publisher) Close() error { return nil }
