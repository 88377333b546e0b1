package steady_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/tests/rig"
)

// defaults are the ways in which a package logs without a logger.
func defaults(panicked func()) []watermill.LoggerAdapter {
	return []watermill.LoggerAdapter{
		steady.Logger(steady.Default(nil), panicked), steady.Apart(steady.Default(nil), panicked), steady.Logger(steady.NewLater(), panicked),
	}
}

// It logs to what slog.Default is when it logs, and drops what that drops.
func TestTheDefaultIsThatOfSlog(t *testing.T) {
	for _, log := range defaults(func() { t.Error("it did not panic") }) {
		for level, lines := range map[slog.Level]int{slog.LevelInfo: 2, slog.LevelDebug: 3, watermill.LevelTrace: 4} {
			written := rig.DefaultLog(t, level)
			say(log)
			all := written.String()
			assert.Equal(t, lines, strings.Count(all, "\n"), all)
			assert.Equal(t, lines, strings.Count(all, "a=1"), all)
			assert.Contains(t, all, `level=ERROR msg=error`)
			assert.Contains(t, all, `b=2`)
			assert.Contains(t, all, `error=boom`)
			assert.Equal(t, level < slog.LevelInfo, steady.Detailed(steady.Default(nil)))
		}
	}
}

func TestALoggerIsNoDefault(t *testing.T) {
	log := watermill.NewCaptureLogger()
	assert.Same(t, log, steady.Default(log))
	assert.True(t, steady.Detailed(log))
	assert.False(t, steady.Detailed(steady.Default(watermill.NopLogger{})))
}

// rude is a handler of slog that panics.
type rude struct{ slog.Handler }

func (rude) Enabled(context.Context, slog.Level) bool  { panic("a handler") }
func (rude) Handle(context.Context, slog.Record) error { panic("a handler") }

func TestAHandlerOfSlogThatPanics(t *testing.T) {
	rig.DefaultLog(t, slog.LevelInfo) // until the test ends
	slog.SetDefault(slog.New(rude{}))
	panics := 0
	for _, log := range defaults(func() { panics++ }) {
		panics = 0
		assert.NotPanics(t, func() { say(log) })
		assert.Equal(t, 4, panics)
	}
}

// Lines about single messages are dropped without a goroutine, and without a map of their fields.
func TestWhatIsOffCostsNothing(t *testing.T) {
	rig.DefaultLog(t, slog.LevelInfo)
	for _, log := range defaults(nil) {
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			log.Debug("debug", nil)
			log.Trace("trace", nil)
		}))
	}
}
