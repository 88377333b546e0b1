// Package steady makes loggers that do not panic.
package steady

import "github.com/ThreeDotsLabs/watermill"

// Logger returns a logger that recovers the panics of log: it drops the panic's value and calls
// panicked unless that is nil. It returns a [watermill.NopLogger] unchanged.
func Logger(log watermill.LoggerAdapter, panicked func()) watermill.LoggerAdapter {
	switch log.(type) {
	case watermill.NopLogger, *logger, *apart:
		return log
	}
	if panicked == nil {
		panicked = func() {}
	}
	return &logger{log, panicked}
}

type logger struct {
	inner    watermill.LoggerAdapter
	panicked func()
}

func (l *logger) outlive() {
	if recover() != nil {
		l.panicked()
	}
}

func (l *logger) Error(msg string, err error, fields watermill.LogFields) {
	defer l.outlive()
	l.inner.Error(msg, err, fields)
}

func (l *logger) Info(msg string, fields watermill.LogFields) {
	defer l.outlive()
	l.inner.Info(msg, fields)
}

func (l *logger) Debug(msg string, fields watermill.LogFields) {
	defer l.outlive()
	l.inner.Debug(msg, fields)
}

func (l *logger) Trace(msg string, fields watermill.LogFields) {
	defer l.outlive()
	l.inner.Trace(msg, fields)
}

// With returns l itself, without the fields, if the logger panics.
func (l *logger) With(fields watermill.LogFields) (with watermill.LoggerAdapter) {
	with = l
	defer l.outlive()
	return &logger{l.inner.With(fields), l.panicked}
}
