package rig

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Patience bounds each wait for an event. Even a busy machine does not reach it. Shorten it with
// MILLRACE_TEST_PATIENCE where tests are expected to fail.
var Patience = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("MILLRACE_TEST_PATIENCE")); err == nil {
		return d
	}
	return 5 * time.Minute
}()

// Eventually waits until holds returns true.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for end := time.Now().Add(Patience); !holds(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(end) {
			require.Fail(t, "too late", "%s; the goroutines of this test:\n%s", what, Where(t))
		}
		time.Sleep(pause)
	}
}

// NewRouter returns a router that logs nothing.
func NewRouter(t testing.TB) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: Patience}, watermill.NopLogger{})
	require.NoError(t, err)
	return router
}

// Run starts router and closes it when t ends. It returns a channel for the result of Router.Run.
func Run(t testing.TB, router *message.Router) (ended <-chan error) {
	t.Helper()
	end := make(chan error, 1)
	go func() { end <- router.Run(context.WithoutCancel(t.Context())) }()
	select {
	case <-router.Running():
	case err := <-end:
		require.NoError(t, err, "the router did not start")
	}
	t.Cleanup(func() { _ = router.Close() })
	return end
}

// Within receives from a channel, and returns the zero value if the channel is closed. It waits for [Patience] at most.
func Within[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(Patience):
		require.Fail(t, "too late", "%s; the goroutines of this test:\n%s", what, Where(t))
		panic("unreachable")
	}
}
