package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// office is a post whose service has an inbox and a table of its own work. Its publisher is
// strict unless a test changes that.
type office struct {
	*post
	store *inbox.Store
}

func newOffice(t *testing.T, db *testdb.DB, change ...func(*outbox.Config)) *office {
	t.Helper()
	strict := func(c *outbox.Config) { c.Standalone = false }
	o := &office{post: newPost(t, db, append([]func(*outbox.Config){strict}, change...)...)}
	store := rig.NewStore(t, db.DB, inbox.Config{Logger: o.log})
	t.Cleanup(func() { assert.NoError(t, store.Close(context.WithoutCancel(t.Context()))) })
	o.store = store
	db.Do(t, `CREATE TABLE work (note VARCHAR(100))`)
	return o
}

// behaviour is one of several that share a database.
type behaviour struct {
	name string
	run  func(o *office)
}

// each runs behaviours one after the other, with empty tables.
func (o *office) each(behaviours ...behaviour) {
	o.Helper()
	for _, b := range behaviours {
		o.Run(b.name, func(t *testing.T) {
			post := *o.post
			post.T, post.broker = t, newMemoryBroker()
			sub := &office{post: &post, store: o.store}
			sub.clear()
			b.run(sub)
		})
	}
}

func (o *office) clear() {
	o.Helper()
	for _, table := range []string{"work", "millrace_outbox", "millrace_claims"} {
		o.db.Do(o, `DELETE FROM `+table)
	}
}

func standalone(c *outbox.Config) { c.Standalone = true }

// work is what a transaction is for.
func work(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO work (note) VALUES ('done')`)
	return err
}

// worked counts the work that was committed.
func (o *office) worked() int {
	o.Helper()
	return o.db.Count(o, `SELECT COUNT(*) FROM work`)
}

// carried returns messages that carry ctx.
func carried(ctx context.Context, uuids ...string) []*message.Message {
	msgs := make([]*message.Message, 0, len(uuids))
	for _, uuid := range uuids {
		m := message.NewMessage(uuid, []byte("payload of "+uuid))
		m.SetContext(ctx)
		msgs = append(msgs, m)
	}
	return msgs
}

// put publishes messages that carry ctx.
func (o *office) put(ctx context.Context, uuids ...string) error {
	return o.out.Publish("orders", carried(ctx, uuids...)...)
}

// stored are the UUIDs in the outbox, in the order of their storing.
func (o *office) stored() []string {
	o.Helper()
	ids := []string{}
	require.NoError(o, o.db.SelectContext(o.Context(), &ids, `SELECT uuid FROM millrace_outbox ORDER BY id`))
	return ids
}

// newOrder is a message for a handler.
func newOrder() *message.Message { return message.NewMessage(watermill.NewUUID(), []byte("an order")) }

// handler wraps h as a router would.
func (o *office) handler(h message.HandlerFunc, change ...func(*millrace.Inbox)) message.HandlerFunc {
	i := millrace.Inbox{Store: o.store, Consumer: "billing", Options: inbox.Options{TwinWait: rig.Patience}}
	for _, c := range change {
		c(&i)
	}
	return i.Middleware(h)
}

// do has h handle msg.
func do(h message.HandlerFunc, msg *message.Message) error {
	_, err := h(msg)
	return err
}

// beside is a database in which a second transaction can write while one of o.db is open:
// the same one, where that is possible.
func (o *office) beside() *office {
	o.Helper()
	if o.db.Dialect != "sqlite" {
		return o
	}
	return newOffice(o.T, testdb.On(o, o.db.Dialect))
}

// many returns n small messages.
func many(ctx context.Context, n int) []*message.Message {
	ids := make([]string, 0, n)
	for i := range n {
		ids = append(ids, fmt.Sprintf("%05d", i))
	}
	return carried(ctx, ids...)
}

// heavy returns messages of which no two fit into one statement.
func heavy(ctx context.Context, uuids ...string) []*message.Message {
	msgs := carried(ctx, uuids...)
	for _, m := range msgs {
		m.Payload = make([]byte, 520<<10)
	}
	return msgs
}
