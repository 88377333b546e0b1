// Command policy runs six consumers of one topic, each by its rules in policy.yaml, and
// sends them changes of products: doubled, out of order, one of them lost, and in the end
// all of them replayed. It shows what each consumer made of that.
//
// service.go and policy.yaml are what a user of Millrace writes; the other files make its
// life hard.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
)

func main() {
	if err := demo(); err != nil {
		fmt.Fprintln(os.Stderr, "policy:", err)
		os.Exit(1)
	}
}

func demo() error {
	dir, err := os.MkdirTemp("", "millrace-policy-")
	if err != nil {
		return err
	}
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "service.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return err
	}
	_, err = db.Exec(`CREATE TABLE effects (consumer TEXT NOT NULL, product TEXT NOT NULL, version INTEGER NOT NULL)`)
	if err == nil {
		err = play(db)
	}
	return errors.Join(err, db.Close(), os.RemoveAll(dir))
}

// play starts the service, sends it the changes, and shows what it did.
func play(db *sqlx.DB) error {
	count, out := &counter{count: map[string]int{}}, &outside{mails: map[string]bool{}, commands: map[string]bool{}}
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	store, err := newService(router, db, broker, out, inbox.Config{Observers: []inbox.Observer{count}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stop, err := relay(ctx, db, out)
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case err := <-stopped: // it did not start
		return err
	case <-router.Running():
	}
	r := &report{db: db, count: count, out: out}
	err = r.send(ctx, broker)
	return errors.Join(err, router.Close(), <-stopped, stop(), store.Close(context.Background()))
}

// relay sends what the outbox stores to the warehouse.
func relay(ctx context.Context, db *sqlx.DB, to message.Publisher) (stop func() error, err error) {
	r, err := outbox.NewRelay(db, to, outbox.RelayConfig{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}
