package steady_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/steady"
)

type hoarse struct{}

func (hoarse) Error(string, error, watermill.LogFields)         { panic("a logger") }
func (hoarse) Info(string, watermill.LogFields)                 { panic("a logger") }
func (hoarse) Debug(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) Trace(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) With(watermill.LogFields) watermill.LoggerAdapter { panic("a logger") }

func say(log watermill.LoggerAdapter) {
	log = log.With(watermill.LogFields{"a": 1})
	log.Error("error", errBoom, watermill.LogFields{"b": 2})
	log.Info("info", nil)
	log.Debug("debug", nil)
	log.Trace("trace", nil)
}

var errBoom = errors.New("boom")

func TestALoggerThatPanics(t *testing.T) {
	for _, broken := range []watermill.LoggerAdapter{hoarse{}, nil} {
		panics := 0
		log := steady.Logger(broken, func() { panics++ })
		assert.NotPanics(t, func() { say(log) })
		assert.Equal(t, 5, panics)
		assert.NotPanics(t, func() { say(steady.Logger(broken, nil)) })
	}
}

func TestALoggerThatDoesNot(t *testing.T) {
	log := watermill.NewCaptureLogger()
	say(steady.Logger(log, func() { t.Error("it did not panic") }))
	assert.True(t, log.Has(watermill.CapturedMessage{
		Level: watermill.ErrorLogLevel, Msg: "error", Err: errBoom, Fields: watermill.LogFields{"a": 1, "b": 2},
	}))
	for _, level := range []watermill.LogLevel{watermill.InfoLogLevel, watermill.DebugLogLevel, watermill.TraceLogLevel} {
		assert.Len(t, log.Captured()[level], 1)
	}
}

func TestItIsWrappedOnce(t *testing.T) {
	nop := watermill.NopLogger{}
	assert.Equal(t, nop, steady.Logger(nop, nil))
	log := steady.Logger(hoarse{}, nil)
	assert.Same(t, log, steady.Logger(log, nil))
}

// leaving is a logger that ends the goroutine that logs.
type leaving struct{}

func (leaving) Error(string, error, watermill.LogFields)         { runtime.Goexit() }
func (leaving) Info(string, watermill.LogFields)                 { runtime.Goexit() }
func (leaving) Debug(string, watermill.LogFields)                { runtime.Goexit() }
func (leaving) Trace(string, watermill.LogFields)                { runtime.Goexit() }
func (leaving) With(watermill.LogFields) watermill.LoggerAdapter { runtime.Goexit(); return nil }

func TestApart(t *testing.T) {
	for _, broken := range []watermill.LoggerAdapter{hoarse{}, leaving{}, nil} {
		panics := 0
		say(steady.Apart(broken, func() { panics++ }))
		say(steady.Apart(broken, nil))
		assert.Equal(t, 5, panics)
	}
	log := watermill.NewCaptureLogger()
	say(steady.Apart(log, func() { t.Error("it did not panic") }))
	assert.True(t, log.Has(watermill.CapturedMessage{
		Level: watermill.ErrorLogLevel, Msg: "error", Err: errBoom, Fields: watermill.LogFields{"a": 1, "b": 2},
	}))
	assert.Equal(t, watermill.NopLogger{}, steady.Apart(watermill.NopLogger{}, nil))
	apart := steady.Apart(log, nil)
	assert.Same(t, apart, steady.Apart(apart, nil))
	assert.Same(t, apart, steady.Logger(apart, nil))
}
