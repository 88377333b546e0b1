package steady

import (
	"context"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
)

// Default returns log or, if log is nil, a logger that passes each line on to what [slog.Default] is by then. A line whose
// level is off costs it nothing.
func Default(log watermill.LoggerAdapter) watermill.LoggerAdapter {
	if log == nil {
		return standard{}
	}
	return log
}

// Detailed reports whether log takes lines about single messages. Of a logger that Default made, it is what
// [slog.Default] takes now; every other one may, but a [watermill.NopLogger].
func Detailed(log watermill.LoggerAdapter) bool {
	switch log.(type) {
	case watermill.NopLogger:
		return false
	case standard:
		return enabled(slog.LevelDebug)
	}
	return true
}

// standard logs to slog.Default.
type standard struct{ fields watermill.LogFields }

// enabled reports whether slog.Default takes lines of a level. A panic of its handler counts as yes: the one that
// follows is counted.
func enabled(level slog.Level) (yes bool) {
	yes = true
	defer func() { _ = recover() }()
	return slog.Default().Enabled(context.Background(), level)
}

// drops reports whether log is a standard logger that does not take lines of a level.
func drops(log watermill.LoggerAdapter, level slog.Level) bool {
	_, is := log.(standard)
	return is && !enabled(level)
}

func (s standard) Error(msg string, err error, fields watermill.LogFields) {
	watermill.NewSlogLogger(nil).Error(msg, err, s.fields.Add(fields))
}

func (s standard) Info(msg string, fields watermill.LogFields) {
	watermill.NewSlogLogger(nil).Info(msg, s.fields.Add(fields))
}

func (s standard) Debug(msg string, fields watermill.LogFields) {
	if enabled(slog.LevelDebug) {
		watermill.NewSlogLogger(nil).Debug(msg, s.fields.Add(fields))
	}
}

func (s standard) Trace(msg string, fields watermill.LogFields) {
	if enabled(watermill.LevelTrace) {
		watermill.NewSlogLogger(nil).Trace(msg, s.fields.Add(fields))
	}
}

func (s standard) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return standard{s.fields.Add(fields)}
}
