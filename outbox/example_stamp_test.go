package outbox_test

import (
	"context"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/outbox"
)

// AccountRenamed is an event that knows which version of which account it brings.
type AccountRenamed struct {
	Account string
	Version int64
	Owner   string
}

func (e AccountRenamed) AggregateID() string     { return e.Account }
func (e AccountRenamed) AggregateVersion() int64 { return e.Version }

// Events stamped with the version of their aggregate, for middleware.VersionGate on the
// other side. The statement that takes the next version locks the account until the commit: so versions
// have no gaps, and leave the outbox in order.
func ExampleMarshaler() {
	db, out, done := exampleOutbox(outbox.Config{OrderKey: outbox.ByAggregate()},
		`CREATE TABLE account (id TEXT PRIMARY KEY, version INTEGER, owner TEXT)`,
		`INSERT INTO account VALUES ('account-7', 1, 'ann')`)
	defer done()

	bus, err := cqrs.NewEventBusWithConfig(out, cqrs.EventBusConfig{
		Marshaler: outbox.Marshaler{CommandEventMarshaler: cqrs.JSONMarshaler{}},
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) {
			return "changes", nil
		},
	})
	check(err)
	rename := func(ctx context.Context, id, owner string) error {
		return outbox.InTx(ctx, db, func(ctx context.Context, tx *sqlx.Tx) error {
			event := AccountRenamed{Account: id, Owner: owner}
			err := tx.GetContext(ctx, &event.Version,
				`UPDATE account SET owner = ?, version = version + 1 WHERE id = ? RETURNING version`, owner, id)
			if err != nil {
				return err
			}
			return bus.Publish(ctx, event)
		})
	}
	check(rename(context.Background(), "account-7", "bob"))
	check(rename(context.Background(), "account-7", "cyd"))

	var rows []struct {
		Key      string `db:"order_key"`
		Metadata string
	}
	check(db.Select(&rows, `SELECT order_key, metadata FROM millrace_outbox ORDER BY id`))
	for _, row := range rows {
		fmt.Println(row.Key, row.Metadata)
	}
	// Output:
	// account-7 {"millrace_aggregate":"account-7","millrace_version":"2","name":"outbox_test.AccountRenamed"}
	// account-7 {"millrace_aggregate":"account-7","millrace_version":"3","name":"outbox_test.AccountRenamed"}
}

// Where messages are not made by a CQRS marshaler, a function stamps them, here from other
// metadata; or [outbox.Stamp] does, where a message is made.
func ExampleStampFunc() {
	stamp := func(_ string, msg *message.Message) (aggregate string, version int64, err error) {
		if msg.Metadata.Get("account") == "" {
			return "", 0, nil // brings no version
		}
		version, err = strconv.ParseInt(msg.Metadata.Get("revision"), 10, 64)
		return msg.Metadata.Get("account"), version, err
	}
	db, out, done := exampleOutbox(outbox.Config{Stamp: stamp, OrderKey: outbox.ByAggregate()})
	defer done()

	check(outbox.InTx(context.Background(), db, func(ctx context.Context, _ *sqlx.Tx) error {
		msg := message.NewMessageWithContext(ctx, "event-1", nil)
		msg.Metadata.Set("account", "account-7")
		msg.Metadata.Set("revision", "12")
		return out.Publish("changes", msg)
	}))
	var key, metadata string
	check(db.QueryRow(`SELECT order_key, metadata FROM millrace_outbox`).Scan(&key, &metadata))
	fmt.Println(key, metadata)
	// Output:
	// account-7 {"account":"account-7","millrace_aggregate":"account-7","millrace_version":"12","revision":"12"}
}
