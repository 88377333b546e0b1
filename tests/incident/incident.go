// Package incident is one night in which seven things go wrong at once, for the tests that mend it by the command and
// by the dashboard. What they see is docs/a-night.md.
package incident

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Night is a service in which much is wrong.
type Night struct {
	*stuck.Service
	Told   strings.Builder // the transcript
	broker rig.Publisher
	kill   func() // the relay
}

// Wrong is how the problems begin that the night has at first, worst first.
var Wrong = []string{
	"the broker is out for relay shop-1", "projection: an earlier version is missing", "billing: account ? has no owner",
	"mail: same key", "shipping: paused by grace: stocktaking", "billing: no janitor has ever run",
}

// What whoever mends it knows, and gives as reasons.
const (
	NeverSent    = "The projection can do without version 3: its producer says that there never was one."
	NotTheSame   = "It is another order, whose producer gave it a used id: it is to be handled as a message of its own."
	HasOwners    = "the accounts have owners"
	Skipped      = "the producer skipped it"
	AnotherOrder = "another order under a used id"
	StockIsTaken = "the stock is taken"
)

const day = 24 * time.Hour

// New has everything go wrong, on PostgreSQL.
func New(t *testing.T) *Night {
	t.Helper()
	db := testdb.On(t, "postgres")
	n := &Night{Service: stuck.New(t, db, inbox.Config{WithoutPlugin: true})}
	n.Idle = true
	n.broker.FailWith(errors.New("dial tcp: connection refused"))
	n.relay("shop-1")
	n.Serve("billing")
	n.Serve("mail")
	stop := n.Serve("shipping")
	n.Serve("projection", millrace.VersionGate{}.Middleware)
	n.Put("billing", stuck.Order(1, ""), stuck.Order(2, ""), stuck.Order(3, ""))
	n.handled(3)
	n.DB.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - ?`, (8 * day).Microseconds())
	n.DB.Do(t, `UPDATE millrace_consumers SET created_at = created_at - ?`, (9*day + time.Hour).Microseconds())

	n.Put("mail", stuck.Order(1, ""))
	n.handled(4)
	other := stuck.Order(1, "")
	other.Payload = []byte(`{"order":1,"customer":"another"}`)
	n.Put("mail", other)
	n.Await(1, `SELECT COUNT(*) FROM millrace_messages WHERE status = 6`)
	for _, version := range []int64{1, 2, 4} {
		msg := stuck.Order(100+int(version), "")
		outbox.Stamp(msg, "cart-7", version)
		n.Put("projection", msg)
	}
	n.Put("shipping", stuck.Order(9, ""))
	n.handled(7)
	n.Await(1, `SELECT COUNT(*) FROM millrace_messages WHERE status = 7`)
	require.NoError(t, stop()) // a look that has begun would not notice the pause
	require.NoError(t, admin.New(n.Store).Pause(t.Context(), "shipping", 0, admin.Operator{Name: "grace", Reason: "stocktaking"}))
	n.Put("shipping", stuck.Order(1, ""), stuck.Order(2, ""))
	n.Serve("shipping")
	var poison []*message.Message
	for i := range 1000 {
		poison = append(poison, stuck.Order(1000+i, fmt.Sprintf("account %d has no owner", 1000+i)))
	}
	n.Put("billing", poison...)
	n.Await(1000, `SELECT COUNT(*) FROM millrace_messages WHERE status = 5`)
	n.Await(1, `SELECT COUNT(*) FROM millrace_outbox_relays WHERE broker_error IS NOT NULL`)
	n.later()
	return n
}

// handled waits until so many messages are.
func (n *Night) handled(all int) {
	n.Helper()
	n.Await(all, `SELECT COUNT(*) FROM millrace_claims WHERE result = 1`)
}

// later has three hours and a half pass.
func (n *Night) later() {
	n.Helper()
	us := (3*time.Hour + 30*time.Minute).Microseconds()
	n.DB.Do(n.T, `UPDATE millrace_messages SET received_at = received_at - ?`, us)
	n.DB.Do(n.T, `UPDATE millrace_outbox SET created_at = created_at - ?`, us)
	n.DB.Do(n.T, `UPDATE millrace_audit SET at = at - ?`, us)
}

// relay runs one on connections of its own, so that it can be killed: without them it cannot say that it ends.
func (n *Night) relay(name string) {
	n.Helper()
	db := n.DB.Open(n.T)
	relay, err := outbox.NewRelay(db.DB, &n.broker, outbox.RelayConfig{Name: name})
	require.NoError(n, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(n.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = relay.Run(ctx) // how it ends is not what this is about
	}()
	n.kill = func() {
		_ = db.Close()
		stop()
		<-ended
	}
	n.Cleanup(n.kill)
}
