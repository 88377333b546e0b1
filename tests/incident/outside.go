package incident

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// BrokerIsBack mends the broker and waits until the relay has sent what waited.
func (n *Night) BrokerIsBack() {
	n.Helper()
	n.Say("The broker is restarted. The relay finds that out by itself, and sends what waited.")
	n.broker.FailWith(nil)
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox WHERE status < 3`)
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox_relays WHERE broker_error IS NOT NULL`)
}

// RelayIsKilled ends the only relay two hours and a half ago.
func (n *Night) RelayIsKilled() {
	n.Helper()
	n.Say("Then the kernel kills the relay for want of memory, and the next invoice stays.")
	n.kill()
	require.NoError(n, n.Outbox.Publish("invoices", message.NewMessage("the next", []byte("{}"))))
	n.DB.Do(n.T, `UPDATE millrace_outbox_relays SET until = until - ?`, (2*time.Hour + 30*time.Minute).Microseconds()) // its lease ends
}

// RelayIsStarted runs another, and waits until it has sent what waited.
func (n *Night) RelayIsStarted() {
	n.Helper()
	n.Say("It is started again.")
	n.relay("shop-2")
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox WHERE status < 3`)
}

// HandlerIsMended has each order succeed from now on.
func (n *Night) HandlerIsMended() {
	n.Helper()
	n.Say("The accounts get their owners back.")
	n.Mended.Store(true)
}

// JanitorIsStarted runs one until all consumers are purged.
func (n *Night) JanitorIsStarted() {
	n.Helper()
	n.Say("The service is started with its plugin, whose janitor comes by at once.")
	ctx, stop := context.WithCancel(n.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Store.Run(ctx) }()
	n.Await(0, `SELECT COUNT(*) FROM millrace_consumers WHERE purged_at = 0`)
	stop()
	assert.NoError(n, <-ended)
}

// Over waits until everything is handled, and sent.
func (n *Night) Over() {
	n.Helper()
	n.Await(0, `SELECT COUNT(*) FROM millrace_messages`)
	n.Await(0, `SELECT COUNT(*) FROM millrace_outbox WHERE status < 3`)
	sent := map[string]bool{}
	for _, m := range n.broker.Messages() {
		sent[m.UUID] = true
	}
	const few = 7 // orders 1, 2, 3, 9, 101, 102 and 104; consumers share some, and an invoice has its order's UUID
	assert.Equal(n, few+1000+len([]string{"the next"}), len(sent), "each invoice is sent")
}
