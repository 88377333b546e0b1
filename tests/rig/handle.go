package rig

import (
	"context"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
)

// MustFail delivers msg to h. The error must be each error of wants, and say each text of it.
func MustFail(t testing.TB, h message.HandlerFunc, msg *message.Message, wants ...any) {
	t.Helper()
	_ = Failure(t, h, msg, wants...) // it was looked at
}

// Failure is [MustFail], and returns the error.
func Failure(t testing.TB, h message.HandlerFunc, msg *message.Message, wants ...any) error {
	t.Helper()
	_, err := h(msg)
	require.Error(t, err)
	for _, want := range wants {
		if text, is := want.(string); is {
			require.ErrorContains(t, err, text)
		} else {
			require.ErrorIs(t, err, want.(error))
		}
	}
	return err
}

// Go does work in a goroutine, and returns the channel that gets its error.
func Go(work func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- work() }()
	return ended
}

// Handle delivers msg to h in a goroutine, and returns the channel that gets the error.
func Handle(h message.HandlerFunc, msg *message.Message) <-chan error {
	return Go(func() error { _, err := h(msg); return err })
}

// Work runs the background work of store until stop is called, or the test ends.
func Work(t testing.TB, store *inbox.Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := Go(func() error { return store.Run(ctx) })
	return func() {
		t.Helper()
		cancel()
		require.NoError(t, <-ended)
	}
}

// Halted returns a handler for one message, which waits in front of h until goOn is called. entered is closed when it
// begins to wait.
func Halted(h message.HandlerFunc) (halted message.HandlerFunc, entered <-chan struct{}, goOn func()) {
	began, end := make(chan struct{}), make(chan struct{})
	return func(msg *message.Message) ([]*message.Message, error) {
		close(began)
		<-end
		return h(msg)
	}, began, sync.OnceFunc(func() { close(end) })
}
