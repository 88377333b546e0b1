// Command durable-queue charges orders through a bank that often fails: one sees how
// pubsub.Durable tries again, gives up, and lets an operator mend what went wrong; at the end
// every effect is there exactly once.
//
// service.go and charge.go are what a user of Millrace writes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
)

func main() {
	postgres := flag.String("postgres", "", "`URL` of a PostgreSQL server, instead of a SQLite file")
	rabbitmq := flag.String("amqp", "", "`URL` of a RabbitMQ, instead of a gochannel")
	flag.Parse()
	if err := demo(*postgres, *rabbitmq); err != nil {
		fmt.Fprintln(os.Stderr, "durable-queue:", err)
		os.Exit(1)
	}
}

func demo(postgres, rabbitmq string) error {
	db, drop, err := openDatabase(postgres)
	if err != nil {
		return err
	}
	b, remove, err := openBroker(rabbitmq)
	if err != nil {
		return errors.Join(err, drop())
	}
	return errors.Join(tell(db, b), remove(), drop())
}

// patience is how long the story may take.
const patience = time.Minute

// story is what happens to the orders.
type story struct {
	*service
	db   *sqlx.DB
	seen *watcher
}

func tell(db *sqlx.DB, b broker) error {
	if _, err := db.Exec(tables); err != nil {
		return err
	}
	s := &story{db: db, seen: newWatcher()}
	charge := newBank().attended(charge)
	var err error
	if s.service, err = newService(db, b, charge, bury, s.seen); err != nil {
		return err
	}
	stop, err := s.start()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = s.tell(ctx)
	return errors.Join(err, stop())
}

func (s *story) tell(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.deliver, s.remedy, s.deliverAgain, s.compare} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// day is the orders of the day, and what becomes of each before anybody looks.
var day = []struct {
	id, payload string
	ends        inbox.Kind
	why         string
}{
	{"order-1", `{"customer": 1, "amount": 10}`, inbox.KindCompleted, "goes straight through"},
	{"order-2", `{"customer": 1, "amount": 20}`, inbox.KindCompleted, "the bank fails twice"},
	{"order-3", `{"customer": 2, "amount": 30}`, inbox.KindCompleted, "the bank says when to come again"},
	{"order-4", `{"customer": 2, "amount": "forty"}`, inbox.KindParked, "no attempt can succeed"},
	{"order-5", `{"customer": 3, "amount": 50}`, inbox.KindParked, "nobody knows the customer yet"},
}

// deliver publishes one order after the other.
func (s *story) deliver(ctx context.Context) error {
	letters := 0
	for _, o := range day {
		fmt.Printf("%s: %s\n", o.id, o.why)
		if err := s.publish(o.id, o.payload); err != nil {
			return err
		}
		if err := s.seen.await(ctx, o.ends, "charge", o.id); err != nil {
			return err
		}
		if o.ends == inbox.KindParked {
			letters++
			if err := s.seen.awaitCount(ctx, letters, inbox.KindCompleted, "bury"); err != nil {
				return err
			}
			fmt.Println("  given up; its dead letter has arrived")
		}
	}
	return nil
}

func (s *story) publish(id, payload string) error {
	return s.broker.Publish(orders, message.NewMessage(id, []byte(payload)))
}

// remedy is what an operator does, here from code.
func (s *story) remedy(ctx context.Context) error {
	fmt.Println("\nwaiting for an operator:")
	waiting, err := s.parked(ctx)
	if err != nil {
		return err
	}
	for _, m := range waiting {
		fmt.Printf("  %s is %s, attempts %d, last error: %s\n", m.UUID, m.Status, m.Attempts, m.LastError)
	}
	if len(waiting) != 2 {
		return fmt.Errorf("%d orders are parked, want 2", len(waiting))
	}
	hopeless, mendable := waiting[0], waiting[1]
	if err := s.discard(ctx, hopeless); err != nil {
		return err
	}
	fmt.Printf("%s is discarded\n", hopeless.UUID)
	if _, err := s.db.ExecContext(ctx, `INSERT INTO customer (id) VALUES (3)`); err != nil {
		return err
	}
	fmt.Printf("customer 3 is added, and %s tried again\n", mendable.UUID)
	if err := s.retry(ctx, mendable); err != nil {
		return err
	}
	return s.seen.await(ctx, inbox.KindCompleted, "charge", mendable.UUID)
}

// deliverAgain has every order come once more, as brokers do.
func (s *story) deliverAgain(ctx context.Context) error {
	fmt.Println("\nevery order is delivered again")
	for _, o := range day {
		if err := s.publish(o.id, o.payload); err != nil {
			return err
		}
	}
	for _, o := range day {
		if err := s.seen.await(ctx, inbox.KindDuplicate, "charge", o.id); err != nil {
			return err
		}
	}
	return nil
}

// compare counts the effects.
func (s *story) compare(ctx context.Context) error {
	open, err := s.open(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\n%-24s%9s%9s\n", "", "expected", "actual")
	for _, row := range []struct {
		what, query string
		expected    int
	}{
		{"orders charged", `SELECT COUNT(DISTINCT order_id) FROM charge`, 4},
		{"charges", `SELECT COUNT(*) FROM charge`, 4},
		{"sum of the charges", `SELECT SUM(amount) FROM charge`, 110},
		{"dead letters", `SELECT COUNT(*) FROM dead_letter`, 2},
		{"messages still open", fmt.Sprintf(`SELECT %d`, open), 0},
	} {
		var actual int
		if err := s.db.GetContext(ctx, &actual, row.query); err != nil {
			return err
		}
		fmt.Printf("%-24s%9d%9d\n", row.what, row.expected, actual)
		if actual != row.expected {
			err = errors.New("not every effect is there exactly once")
		}
	}
	return err
}
