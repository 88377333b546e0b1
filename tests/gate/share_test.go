package gate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
)

// share is what a process is started with that delivers a stream beside others.
type share struct {
	Driver, DSN string
	Aggregates  int
	Versions    int64
	Width       int // messages in flight
	Lease       time.Duration
	FailOneIn   int // the handler fails now and then; 0 is never
}

const (
	shareName = "GATE"    // among the programs that the test binary can be
	drained   = "drained" // the kind of event that says that all is acked
)

// stream is every version of every aggregate, in an order of its own. Messages have the
// same UUIDs in every process, so that each comes once from each.
func (s share) stream() []*message.Message {
	var all []*message.Message
	for a := range s.Aggregates {
		for v := range s.Versions {
			msg := change(fmt.Sprint(a), v+1)
			msg.UUID = fmt.Sprintf("%d at %d", a, v+1)
			all = append(all, msg)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func serve(c *process.Child, s share) error {
	pool, err := sqlx.Open(s.Driver, s.DSN)
	if err != nil {
		return err
	}
	pool.SetMaxOpenConns(s.Width + 4)
	pool.SetMaxIdleConns(s.Width + 4)
	seen := &rig.Events{}
	store, err := inbox.NewStore(pool, inbox.Config{Observers: []inbox.Observer{seen}})
	if err != nil {
		return err
	}
	start := make(chan struct{})
	router, err := s.router(store, start, c.Say)
	if err != nil {
		return err
	}
	ended := rig.Go(func() error { return router.Run(context.Background()) })
	<-router.Running()
	c.Say(process.Event{Kind: process.Ready})
	for {
		order, err := c.Order()
		if err != nil {
			return err
		}
		if order.Do == process.ToClose {
			break
		}
		close(start)
	}
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	err = errors.Join(router.Close(), <-ended, store.Close(ctx), pool.Close())
	c.Closed(err, seen.Counts())
	return nil
}

func (s share) router(store *inbox.Store, start <-chan struct{}, say func(process.Event)) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	sub, err := pubsub.Durable{
		Store: store, Consumer: consumer, Prefetch: s.Width, Lease: s.Lease,
		MinBackoff: 10 * time.Millisecond, Poll: 100 * time.Millisecond, MaxAttempts: 1000, // a lease that lapses counts
	}.Decorate(&list{
		messages: s.stream(), width: s.Width, start: start, drained: func() { say(process.Event{Kind: drained}) },
	})
	if err != nil {
		return nil, err
	}
	tellErrors := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err != nil {
				say(process.Event{Kind: process.Failed, UUID: msg.UUID, Error: err.Error()})
			}
			return produced, err
		}
	}
	router.AddPlugin(store.Plugin())
	patient := millrace.Inbox{Store: store, Options: inbox.Options{TwinWait: rig.Patience}}
	router.AddMiddleware(tellErrors, patient.Middleware, millrace.VersionGate{}.Middleware)
	router.AddConsumerHandler(consumer, "changes", sub, func(msg *message.Message) error {
		err := apply(msg)
		if err == nil && s.FailOneIn > 0 && rand.IntN(s.FailOneIn) == 0 {
			err = errFails
		}
		return err
	})
	return router, nil
}
