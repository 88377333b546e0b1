package outbox

import (
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
)

// exiting is a logger that ends the goroutine that logs.
type exiting struct{ watermill.NopLogger }

func (exiting) Error(string, error, watermill.LogFields) { runtime.Goexit() }

func TestALoggerThatExitsKeepsNobodyWaiting(t *testing.T) {
	o, ended := newOutside(exiting{}), make(chan error, 1)
	for name, work := range map[string]func() error{
		"panics": func() error { panic("a publisher") },
		"exits":  func() error { runtime.Goexit(); return nil },
	} {
		go func() { ended <- o.await("it", work) }()
		select {
		case err := <-ended:
			require.Error(t, err, name)
		case <-time.After(time.Minute):
			require.Fail(t, "it waits for ever", name)
		}
	}
}
