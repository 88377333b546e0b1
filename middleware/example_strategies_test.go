package middleware_test

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// Processed marker: the inbox itself. For effects in the service's own database that would
// add up, such as a balance.
func Example_processedMarker() {
	db, store, done := exampleStore(
		`CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER)`,
		`INSERT INTO account VALUES ('ann', 0)`)
	defer done()

	post := func(msg *message.Message) ([]*message.Message, error) {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(msg.Context(), `UPDATE account SET balance = balance + 10 WHERE id = 'ann'`)
		return nil, err
	}
	handler := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(post)

	deliver(handler, "payment-1", "payment-2", "payment-1")
	var balance int
	check(db.Get(&balance, `SELECT balance FROM account`))
	fmt.Println("balance:", balance)
	// Output: balance: 20
}

// deliver hands messages to a handler, as a router would.
func deliver(handler message.HandlerFunc, messages ...string) {
	for _, m := range messages {
		uuid, payload, _ := strings.Cut(m, " ")
		if _, err := handler(message.NewMessage(uuid, []byte(payload))); err != nil {
			fmt.Println(uuid, "came too early or failed, and will come again")
		}
	}
}

// Unique business key: for a row that must exist once, whichever message asks for it. Two
// messages with UUIDs of their own, about one order, make one invoice.
func Example_uniqueBusinessKey() {
	db, store, done := exampleStore(`CREATE TABLE invoice (order_id TEXT PRIMARY KEY)`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "invoices"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(msg.Context(),
				`INSERT INTO invoice (order_id) VALUES (?) ON CONFLICT (order_id) DO NOTHING`, string(msg.Payload))
			return nil, err
		})

	deliver(handler, "uuid-1 order-42", "uuid-2 order-42")
	var invoices int
	check(db.Get(&invoices, `SELECT COUNT(*) FROM invoice`))
	fmt.Println("invoices:", invoices)
	// Output: invoices: 1
}

// Aggregate version: a table says how far each aggregate has come. What is not newer is left
// out, whatever the effect of the handler is; here it keeps a history.
func Example_aggregateVersion() {
	db, store, done := exampleStore(
		`CREATE TABLE seen (aggregate TEXT PRIMARY KEY, version INTEGER)`,
		`CREATE TABLE history (version INTEGER)`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "history"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			version := string(msg.Payload)
			result, err := tx.ExecContext(msg.Context(), `
				INSERT INTO seen (aggregate, version) VALUES ('order-42', CAST(? AS INTEGER))
				ON CONFLICT (aggregate) DO UPDATE SET version = EXCLUDED.version
				WHERE EXCLUDED.version > seen.version`, version)
			if err != nil {
				return nil, err
			}
			newer, err := result.RowsAffected()
			if newer == 0 || err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(msg.Context(), `INSERT INTO history VALUES (CAST(? AS INTEGER))`, version)
			return nil, err
		})

	deliver(handler, "a 1", "c 3", "b 2", "d 4")
	var versions []int
	check(db.Select(&versions, `SELECT version FROM history ORDER BY rowid`))
	fmt.Println("applied:", versions)
	// Output: applied: [1 3 4]
}

// Upsert with version: the row carries the version it shows, and an older one does not
// overwrite it. For projections that keep the newest state.
func Example_upsertWithVersion() {
	db, store, done := exampleStore(
		`CREATE TABLE customer (id INTEGER PRIMARY KEY, version INTEGER, city TEXT)`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "customers"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			version, city, _ := strings.Cut(string(msg.Payload), " ")
			_, err = tx.ExecContext(msg.Context(), `
				INSERT INTO customer (id, version, city) VALUES (7, CAST(? AS INTEGER), ?)
				ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version, city = EXCLUDED.city
				WHERE EXCLUDED.version > customer.version`, version, city)
			return nil, err
		})

	deliver(handler, "a 1 Rome", "c 3 Oslo", "b 2 Bern")
	var city string
	check(db.Get(&city, `SELECT city FROM customer`))
	fmt.Println("city:", city)
	// Output: city: Oslo
}

// Compare-and-set transition: for states that follow each other. The update names the state
// it leaves, so it happens once, and never from a state it does not fit.
func Example_compareAndSetTransition() {
	db, store, done := exampleStore(
		`CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)`,
		`INSERT INTO orders VALUES (42, 'placed')`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "orders"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			from, to, _ := strings.Cut(string(msg.Payload), " ")
			result, err := tx.ExecContext(msg.Context(),
				`UPDATE orders SET state = ? WHERE id = 42 AND state = ?`, to, from)
			if err != nil {
				return nil, err
			}
			changed, err := result.RowsAffected()
			fmt.Printf("%s to %s: %d\n", from, to, changed)
			return nil, err
		})

	deliver(handler, "a placed paid", "b placed cancelled")
	var state string
	check(db.Get(&state, `SELECT state FROM orders`))
	fmt.Println("state:", state)
	// Output:
	// placed to paid: 1
	// placed to cancelled: 0
	// state: paid
}

// paymentProvider charges once for each idempotency key, as providers do.
type paymentProvider struct{ charged map[string]int }

func (p paymentProvider) Charge(idempotencyKey string, amount int) {
	p.charged[idempotencyKey] = amount
}

// Provider idempotency key: for a call to someone else, which no transaction can take back.
// The handler calls again when it runs again; the key makes that one charge.
func Example_providerIdempotencyKey() {
	_, store, done := exampleStore()
	defer done()

	provider := paymentProvider{charged: make(map[string]int)}
	calls := 0
	handler := millrace.Inbox{Store: store, Consumer: "charges"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			calls++
			provider.Charge("charges/"+msg.UUID, 10)
			if calls == 1 {
				return nil, errors.New("died after the call")
			}
			return nil, nil
		})

	deliver(handler, "order-1", "order-1")
	fmt.Println("calls:", calls)
	fmt.Println("charges:", len(provider.charged))
	// Output:
	// order-1 came too early or failed, and will come again
	// calls: 2
	// charges: 1
}

// Deterministic output id: for a handler that publishes by itself. An id made of the
// message's own is the same in each run, so the consumer knows the copy.
func Example_deterministicOutputID() {
	_, ourStore, done := exampleStore()
	defer done()
	_, theirStore, done := exampleStore()
	defer done()

	published := 0
	mail := millrace.Inbox{Store: theirStore, Consumer: "mail"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			fmt.Println("mail for", msg.UUID)
			return nil, nil
		})
	shop := millrace.Inbox{Store: ourStore, Consumer: "shop"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			published++
			if err := publishTo(mail, msg.UUID+"/receipt"); err != nil {
				return nil, err
			}
			if published == 1 {
				return nil, errors.New("died after publishing")
			}
			return nil, nil
		})

	deliver(shop, "order-1", "order-1")
	fmt.Println("published:", published)
	// Output:
	// mail for order-1/receipt
	// order-1 came too early or failed, and will come again
	// published: 2
}

// publishTo stands for a broker between two services.
func publishTo(consumer message.HandlerFunc, uuid string) error {
	_, err := consumer(message.NewMessage(uuid, []byte("paid")))
	return err
}

// Durable queue: for slow or unreliable work, such as mail. The handler writes the wish down
// in its transaction; a worker of the service's own carries it out, with an idempotency key
// where the other side takes one.
func Example_durableQueue() {
	db, store, done := exampleStore(`CREATE TABLE mail (id TEXT PRIMARY KEY, address TEXT)`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "mail"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(msg.Context(),
				`INSERT INTO mail (id, address) VALUES (?, ?)`, msg.UUID, string(msg.Payload))
			return nil, err
		})
	deliver(handler, "order-1 ann@example.com", "order-1 ann@example.com")

	var wishes []struct{ ID, Address string }
	check(db.Select(&wishes, `SELECT id, address FROM mail ORDER BY id`))
	for _, w := range wishes {
		fmt.Printf("send %s to %s\n", w.ID, w.Address)
		_, err := db.Exec(`DELETE FROM mail WHERE id = ?`, w.ID)
		check(err)
	}
	// Output: send order-1 to ann@example.com
}

// Gap detection: for an aggregate whose events must be applied in order, without a hole. An
// event that comes too early is an error: rolled back, and delivered again later.
func Example_gapDetection() {
	db, store, done := exampleStore(
		`CREATE TABLE ledger (id INTEGER PRIMARY KEY, version INTEGER)`,
		`INSERT INTO ledger VALUES (7, 0)`)
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "ledger"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			result, err := tx.ExecContext(msg.Context(), `
				UPDATE ledger SET version = version + 1
				WHERE id = 7 AND version + 1 = CAST(? AS INTEGER)`, string(msg.Payload))
			if err != nil {
				return nil, err
			}
			next, err := result.RowsAffected()
			if next == 0 && err == nil {
				err = errors.New("gap: the event before this one is missing")
			}
			return nil, err
		})

	deliver(handler, "a 1", "c 3", "b 2", "c 3")
	var version int
	check(db.Get(&version, `SELECT version FROM ledger`))
	fmt.Println("version:", version)
	// Output:
	// c came too early or failed, and will come again
	// version: 3
}
