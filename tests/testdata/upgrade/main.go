// Command upgrade is a service that leaves rows of every kind behind, and works them off.
// The source of the release before builds it too, so that each finds what the other stored:
// it uses the exported API alone, and package process, whose lines stay as they are.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql" // registers "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/process"
)

// settings are what the service is started with.
type settings struct {
	Driver, DSN string

	// Ill has everything fail that a message wants to fail, nothing published, and the
	// consumer that can be paused be so.
	Ill bool
}

type service struct {
	settings
	store *inbox.Store
	feeds map[string]chan *message.Message

	writing sync.Mutex
	lines   *json.Encoder
}

func main() {
	s := &service{lines: json.NewEncoder(os.Stdout), feeds: map[string]chan *message.Message{}}
	err := json.Unmarshal([]byte(os.Getenv("MILLRACE_TEST_UPGRADE")), &s.settings)
	if err == nil {
		err = s.serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (s *service) serve() error {
	db, err := sqlx.Open(s.Driver, s.DSN)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(12)
	db.SetMaxIdleConns(12)
	s.store, err = inbox.NewStore(db, inbox.Config{Logger: watermill.NewStdLoggerWithOut(os.Stderr, false, false)})
	if err != nil {
		return err
	}
	if err := s.store.Migrate(context.Background()); err != nil {
		return err
	}
	out, err := outbox.NewPublisher(db, outbox.Config{OrderKey: outbox.ByMetadata("account")})
	if err != nil {
		return err
	}
	router, err := s.router(out)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return fmt.Errorf("the router did not start: %w", err)
	}
	var relaying sync.WaitGroup
	if !s.Ill {
		relay, err := outbox.NewRelay(db, publisher{s}, outbox.RelayConfig{
			Lease: 3 * time.Second, Poll: 50 * time.Millisecond, MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond,
		})
		if err != nil {
			return err
		}
		relaying.Go(func() { _ = relay.Run(ctx) })
	}
	s.say(process.Event{Kind: process.Ready})
	if err := s.obey(ctx); err != nil {
		return err
	}
	end, cancelEnd := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancelEnd()
	err = errors.Join(router.Close(), <-stopped, s.store.Close(end))
	cancel()
	relaying.Wait()
	closed := process.Event{Kind: process.Closed}
	if err = errors.Join(err, db.Close()); err != nil {
		closed.Error = err.Error()
	}
	s.say(closed)
	return nil
}

// obey follows the test's orders until it says to close. To go on is to do what an operator
// would: pause, or else resume and have parked messages tried again.
func (s *service) obey(ctx context.Context) error {
	decoder := json.NewDecoder(os.Stdin)
	for {
		var o struct {
			Do       string
			Delivery process.Delivery
		}
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return errors.New("the test is gone")
		} else if err != nil {
			return err
		}
		switch o.Do {
		case "deliver":
			s.deliver(o.Delivery)
		case "go on":
			if err := s.operate(ctx); err != nil {
				return err
			}
			s.say(process.Event{Kind: "operated"})
		default:
			return nil
		}
	}
}

func (s *service) operate(ctx context.Context) error {
	by := inbox.Operator{Name: "test", Reason: "an upgrade"}
	if s.Ill {
		return s.store.Pause(ctx, "waiting", 0, by)
	}
	if err := s.store.Resume(ctx, "waiting", 0, by); err != nil {
		return err
	}
	_, err := s.store.RetryAll(ctx, inbox.Filter{}, by, nil, inbox.Pace{})
	return err
}

// deliver hands copies of a message to the topic that its metadata names.
func (s *service) deliver(d process.Delivery) {
	for range max(d.Copies, 1) {
		msg := message.NewMessage(d.UUID, d.Payload)
		for k, v := range d.Metadata {
			msg.Metadata.Set(k, v)
		}
		go func() {
			s.feeds[d.Metadata["topic"]] <- msg
			select {
			case <-msg.Acked():
				s.say(process.Event{Kind: process.Acked, UUID: d.UUID})
			case <-msg.Nacked():
				s.say(process.Event{Kind: process.Nacked, UUID: d.UUID})
			}
		}()
	}
}

func (s *service) say(e process.Event) {
	s.writing.Lock()
	err := s.lines.Encode(e)
	s.writing.Unlock()
	if err != nil {
		os.Exit(2) // nobody listens any more
	}
}

// subscriber hands over what the test delivers to one topic.
type subscriber struct{ *service }

func (s subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	feed := s.feeds[topic]
	go func() {
		defer close(out)
		for {
			select {
			case msg := <-feed:
				msg.SetContext(ctx)
				out <- msg
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (subscriber) Close() error { return nil }

// publisher tells the test what is published.
type publisher struct{ *service }

func (p publisher) Publish(_ string, msgs ...*message.Message) error {
	if p.Ill {
		return errors.New("nothing can be published")
	}
	for _, m := range msgs {
		p.say(process.Event{
			Kind: process.Published, UUID: m.Metadata["for"], Published: &process.Message{UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload},
		})
	}
	return nil
}

func (publisher) Close() error { return nil }
