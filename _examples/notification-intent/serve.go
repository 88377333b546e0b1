package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"golang.org/x/sync/errgroup"
)

// serve is the process that is killed. Its broker confirms a message when it is handled, and is
// gone with the process: the outbox sends again what was not confirmed.
func serve(file, provider string) error {
	db, err := open(file)
	if err != nil {
		return err
	}
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, store, relay, err := newService(db, broker, broker, provider)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return router.Run(ctx) })
	g.Go(func() error {
		select {
		case <-router.Running(): // a broker without subscribers would confirm what nobody gets
			return relay.Run(ctx)
		case <-ctx.Done():
			return nil
		}
	})
	err = g.Wait()
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(err, store.Close(closing), db.Close())
}
