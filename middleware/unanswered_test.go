package middleware_test

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// silentCodec is a codec whose key service answers nothing, but while it is up, until the test ends.
type silentCodec struct {
	up   *atomic.Bool
	ends <-chan struct{}
}

func (c silentCodec) Seal(ctx context.Context, _ payload.Info, data []byte) ([]byte, error) {
	if c.up.Load() {
		return data, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ends:
		return nil, errors.New("the test is over")
	}
}

func (c silentCodec) Open(ctx context.Context, info payload.Info, sealed []byte) ([]byte, error) {
	return c.Seal(ctx, info, sealed)
}

var errMail = errors.New("no mail server")

// answer delivers the message, and waits for the answer for longer than any setting.
func answer(t *testing.T, h message.HandlerFunc) error {
	t.Helper()
	answered := make(chan error, 1)
	go func() { answered <- send(h, "a") }()
	select {
	case err := <-answered:
		return err
	case <-time.After(time.Hour):
		require.Fail(t, "no answer")
		return nil
	}
}

// A step whose result cannot be sealed, since a key service answers nothing, ends with its lease, and is done.
func TestAStepThatIsNotSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := inbox.NewStore(testdb.On(t, "sqlite").DB, inbox.Config{Payloads: silentCodec{new(atomic.Bool), t.Context().Done()}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
		calls := 0
		h := millrace.Deduplicate{Claims: store.Leases(), Consumer: "mailer"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			_, err := inbox.Once(msg.Context(), "mail", func(context.Context, string) ([]byte, error) {
				calls++
				return []byte("sent"), nil
			})
			return nil, err
		})
		began := time.Now()
		for range 2 {
			err := answer(t, h)
			require.ErrorContains(t, err, "it is done, but its result was not kept")
			require.False(t, errors.Is(err, inbox.ErrInDoubt))
			require.True(t, inbox.IsTerminal(err))
		}
		require.Less(t, time.Since(began), time.Minute, "its lease")
		require.Equal(t, 1, calls)
	})
}

// A step whose result cannot be opened, since a key service answers nothing, holds its message no longer than its lease.
func TestAStepThatIsNotOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		up.Store(true)
		store, err := inbox.NewStore(testdb.On(t, "sqlite").DB, inbox.Config{Payloads: silentCodec{&up, t.Context().Done()}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
		calls, kept := 0, []byte(nil)
		h := millrace.Deduplicate{Claims: store.Leases(), Consumer: "mailer"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			var err error
			kept, err = inbox.Once(msg.Context(), "mail", func(context.Context, string) ([]byte, error) {
				calls++
				return []byte("sent"), nil
			})
			return nil, cmp.Or(err, errMail)
		})
		require.ErrorIs(t, answer(t, h), errMail)
		up.Store(false)
		began := time.Now()
		require.ErrorContains(t, answer(t, h), "open its result")
		require.Less(t, time.Since(began), 2*time.Minute, "its lease")
		up.Store(true)
		require.ErrorIs(t, answer(t, h), errMail)
		require.Equal(t, "sent", string(kept))
		require.Equal(t, 1, calls)
	})
}
