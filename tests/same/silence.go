package same

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
)

// Silent lets nothing through to the server while it is set.
type Silent struct{ atomic.Bool }

// Dial opens a connection.
func (s *Silent) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	inner, err := new(net.Dialer).DialContext(ctx, network, address)
	return &silenced{inner, s}, err
}

type silenced struct {
	net.Conn
	silent *Silent
}

func (c *silenced) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Silence checks that a claim without an answer waits for another process only if the server answers at all: BEGIN travels
// with the claim. open returns a pool of connections that dial opens.
func Silence(t *testing.T, open func(dial func(ctx context.Context, network, address string) (net.Conn, error)) *sqlx.DB) {
	t.Helper()
	var silent, never Silent
	var events rig.Events
	handle := func(pool *sqlx.DB, twinWait time.Duration, h message.HandlerFunc) message.HandlerFunc {
		pool.SetMaxOpenConns(2)
		store := rig.NewStore(t, pool, inbox.Config{Observers: []inbox.Observer{&events}, Logger: &events, WithoutPlugin: true})
		wrapped, err := store.Handler(inbox.ConsumerConfig{
			Name: "billing", Options: inbox.Options{TwinWait: twinWait},
		}, h)
		require.NoError(t, err)
		return wrapped
	}
	nothing := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	halted, entered, goOn := rig.Halted(nothing)
	defer goOn()
	there, here := handle(open(never.Dial), 0, halted), handle(open(silent.Dial), 100*time.Millisecond, nothing)

	msg := message.NewMessage(watermill.NewUUID(), nil)
	answer := rig.Handle(there, msg.Copy())
	rig.Within(t, entered, "the other process has the message")
	rig.MustFail(t, here, msg, inbox.ErrInProgress)
	assert.Zero(t, events.Count("outage"))
	goOn()
	require.NoError(t, rig.Within(t, answer, "the other process is done"))
	handled := func() bool {
		_, err := here(msg.Copy())
		return err == nil
	}
	rig.Eventually(t, "its claim takes less than TwinWait", handled)

	silent.Store(true)
	msg = message.NewMessage(watermill.NewUUID(), nil)
	err := rig.Failure(t, here, msg, inbox.ErrUnavailable, "nor the claim before it")
	require.NotErrorIs(t, err, inbox.ErrInProgress)
	assert.Equal(t, 1, events.Count("outage"))

	silent.Store(false)
	rig.Eventually(t, "the database serves again", handled)
}
