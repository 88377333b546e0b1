package inbox

import (
	"errors"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// TestARouterThatNeverRanIsForgotten: a service may make another one and try again.
func TestARouterThatNeverRanIsForgotten(t *testing.T) {
	t.Parallel()
	db, err := sqlx.Open("sqlite", "file:"+t.TempDir()+"/db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(60000)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s, err := NewStore(db, Config{})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	errOther := errors.New("another plugin")
	failed := func() *message.Router {
		r := message.NewDefaultRouter(watermill.NopLogger{})
		r.AddPlugin(s.Plugin(), func(*message.Router) error { return errOther })
		require.ErrorIs(t, r.Run(t.Context()), errOther)
		return r
	}
	known := func(r weak.Pointer[message.Router]) bool {
		_, plugged := s.work.routers.Load(r)
		_, guards := guarded.Load(r)
		return plugged || guards
	}

	free := weak.Make(failed())
	require.Eventually(t, func() bool {
		runtime.GC()
		return free.Value() == nil && !known(free)
	}, 5*time.Minute, time.Millisecond, "its Run failed")

	closed := failed()
	require.True(t, known(weak.Make(closed)))
	require.NoError(t, closed.Close())
	require.Eventually(t, func() bool { return !known(weak.Make(closed)) }, 5*time.Minute, time.Millisecond, "it was closed")
	runtime.KeepAlive(closed)
}
