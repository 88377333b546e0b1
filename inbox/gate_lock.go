package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// gatePatience bounds the wait for aggregates by TwinWait, but leaves a slow server the time that
// it needs itself.
func (c *ConsumerConfig) gatePatience() time.Duration { return max(c.TwinWait, time.Second) }

// lockPatiently locks the aggregates, and may advance a single one at once. If another process has
// one of them, it waits for gatePatience, which does not count as the handler's time. With one
// writer, no other transaction can have them.
func (cl *claim) lockPatiently(g *gate, versions []versioned) (rows []stored.Aggregate, err error) {
	if cl.consumer.store.dialect.OneWriter {
		return cl.lock(g, versions)
	}
	patience := cl.consumer.config.gatePatience()
	waits := cl.span.wait(patience)
	rows, err = cl.lock(g, versions)
	locked := &lockedError{versions[min(len(rows), len(versions)-1)].Aggregate, patience}
	switch {
	case waits && !cl.span.resume():
		return nil, locked
	case waits && dialect.Cut(err):
		return nil, cutShort(locked, err)
	}
	return rows, err
}

// lock locks the aggregates. It returns no rows if it advanced the only one at once; with an error,
// it returns the rows that it had locked.
func (cl *claim) lock(g *gate, versions []versioned) (rows []stored.Aggregate, err error) {
	if cl.step == nil { // else the statement that claimed the message tried it
		if advanced, err := cl.advance(g, versions); advanced || err != nil {
			return nil, err
		}
	}
	for _, v := range versions {
		if err := cl.leap(g, v); err != nil {
			return rows, fmt.Errorf("look at aggregate %q: %w", v.Aggregate, err)
		}
		row, err := cl.lockOne(g, v, cl.atOnce(g, versions))
		if err != nil {
			return rows, fmt.Errorf("lock aggregate %q: %w", v.Aggregate, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// A lockedError says that another process had an aggregate for longer than TwinWait.
type lockedError struct {
	aggregate string
	twinWait  time.Duration
}

func (e *lockedError) Error() string {
	return fmt.Sprintf("version gate: another process works on aggregate %q and did not finish within TwinWait, %v", e.aggregate, e.twinWait)
}

func (e *lockedError) Is(target error) bool { return target == ErrInProgress } //nolint:errorlint // errors.Is unwraps

// cutShort returns late, with which a wait for another process ends, for a wait that the server ended earlier: statement_timeout
// and the like may be below TwinWait. err says nothing else about the server, so its kind is left out.
func cutShort(late, err error) error {
	return fmt.Errorf("%w; the server ended the wait before that: %v", late, err) //nolint:errorlint // as the comment says
}

// inTheWay reports whether err says that other transactions kept the message from its handler. Then
// it sends the message back to its source, which does not count as an attempt.
func (cl *claim) inTheWay(err error) bool {
	var locked *lockedError
	if !errors.As(err, &locked) && dialect.Classify(err) != dialect.Contention {
		return false
	}
	cl.consumer.store.observeContention(cl.delivery, err)
	cl.visit.leave()
	cl.postpone(func(context.Context) error { return err })
	return true
}
