package stacks_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/fx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func newStore(lc fx.Lifecycle, db *sqlx.DB) (*inbox.Store, error) {
	store, err := inbox.NewStore(db, inbox.Config{})
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(store.Close))
	return store, nil
}

// newRouter takes the store, so fx closes the router first.
func newRouter(lc fx.Lifecycle, stop fx.Shutdowner, store *inbox.Store) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	millrace.Inbox{Store: store}.AddTo(router)
	lc.Append(fx.StartStopHook(func(ctx context.Context) error { return start(ctx, router, stop) }, router.Close))
	return router, nil
}

// start returns what keeps the router from starting, such as a wrong setting that the plugin finds. If the router ends later,
// because its subscribers have closed for instance, the service ends too.
func start(ctx context.Context, router *message.Router, stop fx.Shutdowner) error {
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running():
		go func() {
			if err := <-ended; err != nil {
				slog.Error("the router ended", "err", err)
			}
			_ = stop.Shutdown(fx.ExitCode(1))
		}()
		return nil
	case err := <-ended:
		return err
	}
}

// TestFx starts a service that fx puts together, delivers an order twice, and ends the service's subscription.
func TestFx(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short has no PostgreSQL")
	}
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE orders (id TEXT PRIMARY KEY, amount BIGINT NOT NULL)`)
	feed := rig.NewFeed()
	app := fx.New(fx.NopLogger, fx.Supply(db.DB), fx.Provide(newStore, newRouter), fx.Invoke(func(router *message.Router) {
		router.AddConsumerHandler("shop", "orders", feed, func(msg *message.Message) error {
			o, err := read(msg)
			if err != nil {
				return err
			}
			return insertOrder(msg.Context(), &o)
		})
	}))
	require.NoError(t, app.Start(t.Context()))
	for range 2 {
		msg := placedOrder("m1", order{"o1", 10})
		feed.Send(t, msg)
		assert.True(t, rig.Answer(t, msg))
	}
	require.NoError(t, feed.Close())
	ended := <-app.Wait()
	assert.Equal(t, 1, ended.ExitCode)
	require.NoError(t, app.Stop(t.Context()))
	assert.Equal(t, 1, db.Count(t, `SELECT COUNT(*) FROM orders`))
}
