package steady

import (
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
)

// Apart is [Logger] for goroutines that others depend on. It logs each line in a goroutine of its
// own and waits for it, because the logger may end that goroutine with runtime.Goexit, as
// testing.T.FailNow does. That counts as a panic.
func Apart(log watermill.LoggerAdapter, panicked func()) watermill.LoggerAdapter {
	switch log.(type) {
	case watermill.NopLogger, *apart:
		return log
	}
	if panicked == nil {
		panicked = func() {}
	}
	return &apart{log, panicked}
}

type apart struct {
	inner    watermill.LoggerAdapter
	panicked func()
}

func (l *apart) await(say func()) {
	done := make(chan struct{})
	go func() {
		returned := false
		defer close(done)
		defer func() {
			if _ = recover(); !returned {
				l.panicked()
			}
		}()
		say()
		returned = true
	}()
	<-done
}

func (l *apart) Error(msg string, err error, fields watermill.LogFields) {
	l.await(func() { l.inner.Error(msg, err, fields) })
}

func (l *apart) Info(msg string, fields watermill.LogFields) {
	l.await(func() { l.inner.Info(msg, fields) })
}

func (l *apart) Debug(msg string, fields watermill.LogFields) {
	if drops(l.inner, slog.LevelDebug) {
		return
	}
	l.await(func() { l.inner.Debug(msg, fields) })
}

func (l *apart) Trace(msg string, fields watermill.LogFields) {
	if drops(l.inner, watermill.LevelTrace) {
		return
	}
	l.await(func() { l.inner.Trace(msg, fields) })
}

// With returns l itself, without the fields, if the logger panics.
func (l *apart) With(fields watermill.LogFields) (with watermill.LoggerAdapter) {
	if s, is := l.inner.(standard); is {
		return &apart{s.With(fields), l.panicked}
	}
	with = l
	l.await(func() { with = &apart{l.inner.With(fields), l.panicked} })
	return with
}
