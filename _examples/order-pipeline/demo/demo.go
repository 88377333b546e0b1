// Package demo is a bad day for two services: customers who click twice, a broker that
// delivers twice, and processes that are killed.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/outbox"
)

const (
	placed  = 500 // orders
	rate    = 60  // per second
	crashes = 3   // of each service
)

// demo is everything around the services.
type demo struct {
	broker             *broker
	load               *Load
	ordersDB, stockDB  *database
	orders, fulfilment *service
}

// Run plays the day through, and returns an error if the books do not agree in the end.
func Run(ctx context.Context, postgres, amqp string) (err error) {
	name := fmt.Sprintf("millrace_example_%d", os.Getpid())
	ordersDB, err := createDatabase(ctx, postgres, name+"_orders")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ordersDB.drop()) }()
	stockDB, err := createDatabase(ctx, postgres, name+"_fulfilment")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stockDB.drop()) }()
	broker := &broker{uri: amqp, prefix: name + "."}
	defer func() { err = errors.Join(err, broker.clean()) }()
	address, err := freeAddress()
	if err != nil {
		return err
	}

	// Consumers first: an order that is published before somebody has declared a queue for it
	// is an error, which the relay retries after a while.
	fulfilment, err := startService(ctx, "fulfilment", "-db", stockDB.dsn, "-amqp", amqp, "-prefix", broker.prefix)
	if err != nil {
		return err
	}
	defer func() { fulfilment.kill() }()
	orders, err := startService(ctx, "orders", "-db", ordersDB.dsn, "-amqp", amqp, "-prefix", broker.prefix,
		"-listen", address)
	if err != nil {
		return err
	}
	defer func() { orders.kill() }()
	d := &demo{
		broker: broker, load: &Load{URL: "http://" + address, Orders: placed, Rate: rate},
		ordersDB: ordersDB, stockDB: stockDB, orders: orders, fulfilment: fulfilment,
	}
	return d.run(ctx)
}

// freeAddress returns one that nobody listens on now.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func (d *demo) run(ctx context.Context) error {
	showing, stop := context.WithCancel(ctx)
	defer stop()
	go d.show(showing)
	if err := d.badDay(ctx); err != nil {
		return err
	}
	if err := d.untilQuiet(ctx); err != nil {
		return err
	}
	stop()
	fmt.Println(d)
	if err := errors.Join(d.orders.stop(), d.fulfilment.stop()); err != nil {
		return err
	}
	return d.reconcile(ctx)
}

// badDay returns when all orders are placed and all crashes survived.
func (d *demo) badDay(ctx context.Context) error {
	doubling, stop := context.WithCancel(ctx)
	defer stop()
	doubled := make(chan error, 1)
	go func() { doubled <- d.broker.double(doubling) }()

	day, ctx := errgroup.WithContext(ctx)
	day.Go(func() error { return d.load.Run(ctx) })
	day.Go(func() error { return d.orders.crash(ctx, crashes, placed) })
	day.Go(func() error { return d.fulfilment.crash(ctx, crashes, placed) })
	err := day.Wait()
	stop()
	return errors.Join(err, <-doubled)
}

// show prints how far the day is.
func (d *demo) show(ctx context.Context) {
	for tick := time.NewTicker(2 * time.Second); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			fmt.Println(d)
		}
	}
}

func (d *demo) String() string {
	return fmt.Sprintf("placed %3d of %d, fulfilled %3d and killed %d times, results %3d and killed %d times",
		d.load.placed.Load(), placed, d.fulfilment.counted("completed"), d.fulfilment.counted("killed"),
		d.orders.counted("completed"), d.orders.counted("killed"))
}

// untilQuiet waits until every order has a result and nothing is on its way. If that takes
// too long, the books will tell why.
func (d *demo) untilQuiet(ctx context.Context) error {
	const patience = time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errNotQuiet)
	defer cancel()
	for _, quiet := range []func() (bool, error){
		func() (all bool, err error) {
			err = d.ordersDB.GetContext(ctx, &all, `SELECT NOT EXISTS (SELECT 1 FROM orders WHERE status = 'placed')`)
			return all, err
		},
		func() (bool, error) { return sent(ctx, d.ordersDB.DB) },
		func() (bool, error) { return sent(ctx, d.stockDB.DB) },
		func() (bool, error) {
			messages, _, err := d.broker.waiting()
			return messages == 0, err
		},
	} {
		err := d.orders.until(ctx, quiet)
		if errors.Is(context.Cause(ctx), errNotQuiet) {
			fmt.Println(errNotQuiet)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errNotQuiet = errors.New("still not all is done")

// sent reports whether an outbox is empty.
func sent(ctx context.Context, db *sqlx.DB) (bool, error) {
	out, err := outbox.NewPublisher(db, outbox.Config{})
	if err != nil {
		return false, err
	}
	backlog, err := out.Backlog(ctx, outbox.BacklogOptions{})
	return backlog.Unsent().N == 0, err
}
