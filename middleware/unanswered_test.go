package middleware_test

import (
	"context"
	"errors"
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

// silentCodec is a codec whose key service answers nothing.
type silentCodec struct{}

func (silentCodec) Seal(ctx context.Context, _ payload.Info, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (c silentCodec) Open(ctx context.Context, info payload.Info, sealed []byte) ([]byte, error) {
	return c.Seal(ctx, info, sealed)
}

// answer delivers a message, and waits for the answer for longer than any setting.
func answer(t *testing.T, h message.HandlerFunc, id string) error {
	t.Helper()
	answered := make(chan error, 1)
	go func() { answered <- send(h, id) }()
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
		store, err := inbox.NewStore(testdb.On(t, "sqlite").DB, inbox.Config{Payloads: silentCodec{}})
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
			err := answer(t, h, "a")
			require.ErrorContains(t, err, "it is done, but its result was not kept")
			require.False(t, errors.Is(err, inbox.ErrInDoubt))
			require.True(t, inbox.IsTerminal(err))
		}
		require.Less(t, time.Since(began), time.Minute, "its lease")
		require.Equal(t, 1, calls)
	})
}
