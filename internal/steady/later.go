package steady

import (
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
)

// Later is a logger that passes lines on to the logger that it is given, and until then to that of
// [Default]. Loggers that With returns do the same. It is safe for concurrent use.
type Later struct {
	first  *atomic.Pointer[watermill.LoggerAdapter]
	fields watermill.LogFields
}

// NewLater returns a Later without a logger.
func NewLater() *Later { return &Later{first: new(atomic.Pointer[watermill.LoggerAdapter])} }

// Give passes lines on to log from now on, unless Later has a logger already. It reports whether it
// did not.
func (l *Later) Give(log watermill.LoggerAdapter) (first bool) {
	return l.first.CompareAndSwap(nil, &log)
}

func (l *Later) logger() watermill.LoggerAdapter {
	first := l.first.Load()
	switch {
	case first == nil:
		return standard{l.fields}
	case len(l.fields) == 0:
		return *first
	}
	return (*first).With(l.fields)
}

// Error passes the line on.
func (l *Later) Error(msg string, err error, fields watermill.LogFields) {
	l.logger().Error(msg, err, fields)
}

// Info passes the line on.
func (l *Later) Info(msg string, fields watermill.LogFields) { l.logger().Info(msg, fields) }

// Debug passes the line on.
func (l *Later) Debug(msg string, fields watermill.LogFields) { l.logger().Debug(msg, fields) }

// Trace passes the line on.
func (l *Later) Trace(msg string, fields watermill.LogFields) { l.logger().Trace(msg, fields) }

// With returns a logger that adds fields to each line.
func (l *Later) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return &Later{first: l.first, fields: l.fields.Add(fields)}
}
