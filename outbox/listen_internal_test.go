package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type waits struct{}

func (*waits) WaitForNotification(context.Context) (*notice, error) { return &notice{"own"}, nil }

type notice struct{ Payload string }

type waitsForLess struct{}

func (*waitsForLess) WaitForNotification(context.Context) (int, error) { return 1, nil }

type waitsOtherwise struct{}

func (*waitsOtherwise) WaitForNotification(int) (int, error) { return 1, nil }

type of[T any] struct{ conn T }

func (c of[T]) Conn() T { return c.conn }

func TestOnlyAConnectionLikePgxWaits(t *testing.T) {
	wait := waiter(of[*waits]{&waits{}})
	require.NotNil(t, wait)
	payload, err := wait(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "own", payload)
	for _, other := range []any{
		struct{}{}, of[int]{}, of[*waits]{}, of[any]{}, of[*waitsOtherwise]{&waitsOtherwise{}}, of[*waitsForLess]{&waitsForLess{}},
	} {
		assert.Nil(t, waiter(other), "%T", other)
	}
}

// wire is a connection like pgx's. It takes its time to send a notice and to pass it on, and loses the first ones.
type wire struct {
	send, pass time.Duration
	lost       int
	sent       int
	notices    chan string
}

func (w *wire) Connect(context.Context) (driver.Conn, error) { return w, nil }
func (*wire) Driver() driver.Driver                          { return nil }
func (*wire) Prepare(string) (driver.Stmt, error)            { return nil, driver.ErrSkip }
func (*wire) Begin() (driver.Tx, error)                      { return nil, driver.ErrSkip }
func (*wire) Close() error                                   { return nil }
func (w *wire) Conn() *wire                                  { return w }

func (w *wire) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	_, payload, some := strings.Cut(query, "'")
	if !some {
		return driver.ResultNoRows, nil
	}
	select {
	case <-time.After(w.send):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if w.sent++; w.sent > w.lost {
		w.notices <- strings.TrimSuffix(payload, "'")
	}
	return driver.ResultNoRows, nil
}

func (w *wire) WaitForNotification(ctx context.Context) (*notice, error) {
	select {
	case payload := <-w.notices:
		<-time.After(w.pass)
		return &notice{payload}, ctx.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestASlowMomentMakesNoRelayDeaf for the rest of its life.
func TestASlowMomentMakesNoRelayDeaf(t *testing.T) {
	const said = "outbox: notices from other processes do not reach this relay; it polls instead"
	for name, c := range map[string]struct {
		wire
		deaf bool
	}{
		"at once":            {},
		"a busy pool":        {wire: wire{send: 4900 * time.Millisecond, pass: 200 * time.Millisecond}},
		"two notices lost":   {wire: wire{lost: 2}},
		"none is ever heard": {wire: wire{lost: 100}, deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &c.wire
				l.notices = make(chan string, 1)
				pool := sql.OpenDB(l)
				defer func() { assert.NoError(t, pool.Close()) }()
				log := watermill.NewCaptureLogger()
				r, err := NewRelay(sqlx.NewDb(pool, "pgx"), confirming{}, RelayConfig{Dialect: "postgres", Logger: log})
				require.NoError(t, err)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ended := make(chan bool)
				go func() { r.listen(ctx); close(ended) }()
				select {
				case <-ended:
				case <-time.After(time.Hour):
				}
				assert.Equal(t, c.deaf, log.Has(watermill.CapturedMessage{
					Level: watermill.InfoLogLevel, Msg: said, Fields: watermill.LogFields{"reason": errDeaf.Error()},
				}))
				if c.deaf {
					return
				}
				l.notices <- "of another process"
				<-r.woken
				stop()
				<-ended
			})
		})
	}
}

// A notice to other relays waits for a connection, which the messages in hand may have.
func TestARelayIsWokenBeforeTheOthersGetANotice(t *testing.T) {
	r := newTestRelay(t, RelayConfig{})
	noticed := *r.sql
	noticed.Notifies = true
	r.sql = &noticed
	r.shares.Store(true)
	r.db.SetMaxOpenConns(1)
	conn, err := r.db.Conn(t.Context())
	require.NoError(t, err)
	rings, leave := r.rings()
	defer leave()
	require.True(t, r.bell.Ring())
	<-rings
	assert.Zero(t, r.db.Stats().WaitDuration)
	require.NoError(t, conn.Close())
}
