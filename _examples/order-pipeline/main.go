// Command order-pipeline is two services that share nothing but RabbitMQ, and a bad day for
// both. Without arguments it starts them as processes of their own, posts orders, kills them
// again and again, and compares in the end what they have in their books:
//
//	order-pipeline            [-postgres URL] [-amqp URL]
//	order-pipeline orders     -db URL [-amqp URL] [-listen ADDRESS] [-prefix NAME]
//	order-pipeline fulfilment -db URL [-amqp URL] [-prefix NAME]
//	order-pipeline load       [-url URL] [-orders N] [-rate N]
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"order-pipeline/demo"
	"order-pipeline/events"
	"order-pipeline/fulfilment"
	"order-pipeline/orders"
	"order-pipeline/postgres"

	"github.com/millrace-go/millrace/inbox"
)

func main() {
	play, args := runDemo, os.Args[1:]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		roles := map[string]func(context.Context, settings) error{
			"orders": runOrders, "fulfilment": runFulfilment, "load": runLoad,
		}
		if play = roles[args[0]]; play == nil {
			fail(fmt.Errorf("%q is none of orders, fulfilment, load", args[0]))
		}
		args = args[1:]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := play(ctx, parse(args))
	stop()
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "order-pipeline:", err)
	os.Exit(1)
}

type settings struct {
	postgres, amqp, db, prefix, listen, url string
	orders, rate                            int
}

func parse(args []string) (s settings) {
	flag.StringVar(&s.postgres, "postgres",
		cmp.Or(os.Getenv("MILLRACE_TEST_POSTGRES"), "postgres://postgres@127.0.0.1:5432/postgres"),
		"`URL` of a PostgreSQL server on which databases may be created")
	flag.StringVar(&s.amqp, "amqp",
		cmp.Or(os.Getenv("MILLRACE_TEST_RABBITMQ"), "amqp://guest:guest@127.0.0.1:5672/"), "`URL` of RabbitMQ")
	flag.StringVar(&s.db, "db", "", "`URL` of a service's database")
	flag.StringVar(&s.prefix, "prefix", "", "`name` that exchanges and queues begin with")
	flag.StringVar(&s.listen, "listen", "127.0.0.1:8080", "`address` of the order service")
	flag.StringVar(&s.url, "url", "http://127.0.0.1:8080", "`URL` of the order service")
	flag.IntVar(&s.orders, "orders", 500, "how many orders to post")
	flag.IntVar(&s.rate, "rate", 60, "how many orders to post per second")
	_ = flag.CommandLine.Parse(args) // it exits on an error
	return s
}

func runDemo(ctx context.Context, s settings) error { return demo.Run(ctx, s.postgres, s.amqp) }

func runOrders(ctx context.Context, s settings) error {
	db, err := postgres.Open(s.db)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	service, err := orders.New(ctx, orders.Config{
		DB: db, Broker: events.Broker(s.amqp, s.prefix, "orders"), Listener: listener,
		Observers: []inbox.Observer{reporter},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return errors.Join(service.Run(ctx), db.Close())
}

func runFulfilment(ctx context.Context, s settings) error {
	db, err := postgres.Open(s.db)
	if err != nil {
		return err
	}
	service, err := fulfilment.New(ctx, fulfilment.Config{
		DB: db, Broker: events.Broker(s.amqp, s.prefix, "fulfilment"),
		Observers: []inbox.Observer{reporter},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return errors.Join(service.Run(ctx), db.Close())
}

// reporter prints what the inbox decides, a word a line, for the demo that started the
// service.
var reporter = inbox.On(func(_ context.Context, e inbox.Event) { fmt.Println(e.Kind) },
	inbox.KindCompleted, inbox.KindDuplicate)

func runLoad(ctx context.Context, s settings) error {
	load := &demo.Load{URL: s.url, Orders: s.orders, Rate: s.rate}
	err := load.Run(ctx)
	fmt.Println(load)
	return err
}
