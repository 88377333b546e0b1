package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/internal/reserved"
	"github.com/millrace-go/millrace/internal/stored"
)

// The inbox stores a message without a key whole, as FAILED_TERMINAL, under an id of its own, and
// acks it: redelivered, it would fail each time and hold back the messages behind it. When it is
// tried again, the queue looks for its key again.

// noKey returns why a message is stored without a key. It returns err if the message is not to
// blame.
func noKey(ctx context.Context, err error) (why, error) {
	if blameless(ctx, err) {
		return why{}, err
	}
	return why{ReasonNoKey, ReasonNoKey + ": " + string(noteText(err.Error()))}, nil
}

// blameless reports whether the message is not to blame for an error of a function of the service:
// if the delivery ended, or if the function asked a database that is down, busy or slow, or returned
// ErrUnavailable.
func blameless(ctx context.Context, err error) bool {
	return ctx.Err() != nil || unanswered(err)
}

// unanswered reports whether err says that somebody who was asked is down, busy or slow.
func unanswered(err error) bool {
	kind := dialect.Classify(err)
	return kind == dialect.Unavailable || kind == dialect.Contention ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable)
}

// withoutKey gives d an id of its own. If the message is not to blame for err, it returns err
// instead.
func (d *delivery) withoutKey(err error) error {
	if d.keyless, err = noKey(d.ctx, err); err != nil {
		return err
	}
	d.id = keylessID(d.as.Came.UUID, d.as.Came.Payload, d.as.Came.Metadata)
	d.key = keycode.String(d.id)
	return nil
}

// keylessID returns the id of a message without a key, which each of its deliveries has.
func keylessID(uuid string, payload message.Payload, metadata message.Metadata) []byte {
	return keycode.Keyless(uuid, payload, msgcode.AppendMetadata(nil, reserved.Own(metadata)))
}

// keepKeyless stores a message without a key through the queue that delivers it past its table, if
// there is one, because the queue calls OnPark.
func (cl *claim) keepKeyless() (kept bool, err error) {
	a := cl.queueAttempt()
	if cl.keyless.text == "" || a == nil || a.keep == nil {
		return false, nil
	}
	because := cl.keyless
	if keycode.IsKeyless(cl.id) { // a queue that finds no key either gives its own reason
		because.text = ReasonNoKey + ": middleware.Inbox finds none, and pubsub.Durable does: give both the same Key and Fingerprint; " +
			"then try the message again (" + strings.TrimPrefix(because.text, ReasonNoKey+": ") + ")"
	}
	fresh, err := cl.keepBy(a.keep, because)
	if err != nil {
		return false, err
	}
	if !fresh {
		cl.answer = "stored as " + stored.FailedTerminal.String()
		cl.duplicate()
	}
	return true, nil
}

// keepBy calls keep, unless the database is known to be down.
func (cl *claim) keepBy(keep func(context.Context, why) (bool, error), because why) (kept bool, err error) {
	s, d := cl.consumer.store, cl.delivery
	pass, up := s.outage.Enter(d.ctx)
	if !up {
		d.observe(KindOutage, databaseDown, ErrUnavailable)
		return false, ErrUnavailable
	}
	returned := false
	defer func() {
		if !returned {
			pass.Cancel()
		}
	}()
	ctx, cancel := context.WithTimeout(d.ctx, cl.consumer.config.TwinWait) // another transaction may hold the queue's key
	defer cancel()
	kept, err = keep(ctx, because)
	returned = true
	if err != nil && ctx.Err() != nil && d.ctx.Err() == nil {
		pass.Cancel()
		return false, fmt.Errorf("%w: keep the message for an operator: %w", ErrInProgress, err)
	}
	switch {
	case saysOf(err).Down():
		pass.Tell(func() { d.observe(KindOutage, databaseDown, err) })
		if pass.Down(d.ctx) {
			d.log().Error("inbox: the database does not serve the inbox, deliveries are held back", database.Explain(err), nil)
		}
	default:
		if err == nil {
			s.answers(pass)
		} else {
			pass.Cancel()
		}
	}
	return kept, err
}

// asideStatus returns the status in which d waits for an operator if its handler did not run.
func (d *delivery) asideStatus() stored.Status {
	if d.keyless.text != "" {
		return stored.FailedTerminal
	}
	return stored.Parked
}
