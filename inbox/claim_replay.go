package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/reserved"
	"github.com/millrace-go/millrace/internal/stored"
)

// String returns the name of the rule, such as "allow".
func (r ReplayRule) String() string {
	switch r {
	case ReplayAllow:
		return "allow"
	case ReplaySuppress:
		return "suppress"
	case ReplayRefuse:
		return "refuse"
	}
	return fmt.Sprintf("ReplayRule(%d)", int(r))
}

// ReplayRule is what a consumer does with a replayed message that it has not completed, or
// has forgotten. Under every rule, a message that it has completed is a duplicate.
type ReplayRule int

// What can happen to a replayed message.
const (
	// ReplayAllow treats it like every delivery. The handler may ask [IsReplay].
	ReplayAllow ReplayRule = iota
	// ReplaySuppress runs the handler and commits its writes, but does not send its messages: those
	// that it returns, and those that it publishes with its context through an outbox.Publisher.
	// They are counted. This holds even if the message was never handled before the replay.
	ReplaySuppress
	// ReplayRefuse parks it, so that no effect outside the transaction happens twice. After
	// admin.Admin.Retry the handler runs.
	ReplayRefuse
)

// IsReplay reports whether ctx belongs to a replayed message that middleware.Inbox or
// middleware.Deduplicate gave its handler.
func IsReplay(ctx context.Context) bool {
	is, _ := ctx.Value(replayKey{}).(bool)
	return is
}

type replayKey struct{}

// replayed returns the name of the replay that sent msg, and whether one did.
func replayed(msg *message.Message) (name string, is bool) {
	name, is = msg.Metadata[ReplayField]
	return name, is
}

// replayContext returns a context in which [IsReplay] is right for msg. That is not always ctx, which may
// come from the handler of another message.
func replayContext(ctx context.Context, msg *message.Message) context.Context {
	if _, is := replayed(msg); is != IsReplay(ctx) {
		return context.WithValue(ctx, replayKey{}, is)
	}
	return ctx
}

// under reports whether d is a replayed message and its consumer follows rule.
func (d *delivery) under(rule ReplayRule) bool {
	return d.replayed && !d.asFirstSent && d.consumer.config.OnReplay == rule
}

// refuses reports whether the message must not be handled because it was replayed. If an operator has
// retried the stored message, it must be handled.
func (cl *claim) refuses(ctx context.Context, db sqlx.QueryerContext, what move) (bool, error) {
	if !cl.under(ReplayRefuse) || what == insert && cl.lease == nil {
		return cl.under(ReplayRefuse), nil
	}
	var allowed bool
	err := sqlx.GetContext(ctx, db, &allowed, cl.consumer.store.dialect.Queue.SelectAllowed, cl.id32, cl.id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) { // without a row, no operator can have retried it
		return false, fmt.Errorf("look up whether an operator retried the replayed message: %w", err)
	}
	return !allowed, nil
}

// refusal returns why a replayed message is parked.
func (d *delivery) refusal() why {
	return why{ReasonReplayed, fmt.Sprintf(
		reserved.Refused+"%.200q, and this consumer refuses replayed messages: Retry has it handled all the same", d.replay)}
}

// park stores the message for an operator, in the transaction of its claim, and opens the claim.
func (cl *claim) park(ctx context.Context, tx *sqlx.Tx, reason string) error {
	s, code := cl.consumer.store, stored.ReasonOther
	if cl.parkedAsReplay {
		code = stored.ReasonReplayed
	}
	leased := cl.lease != nil && cl.collidedWith == nil // a collision has a row of its own
	var row newRow
	var err error
	if !leased && !cl.openRow {
		row, err = s.rowOf(ctx, tx, cl, openMessage{status: cl.asideStatus(), reason: reason, code: code, delay: dialect.NeverDue})
	}
	if err == nil {
		err = s.reopen(ctx, tx, cl.id32, cl.token, cl.id)
	}
	if err != nil {
		return err
	}
	var moved int64
	switch {
	case leased:
		moved, err = database.Affected(tx.ExecContext(ctx, s.dialect.Queue.ParkLeased,
			[]byte(reason), code, dialect.NeverDue, cl.id32, cl.id, cl.lease.token))
	case cl.openRow:
		moved, err = database.Affected(tx.ExecContext(ctx, s.dialect.MoveMessage,
			cl.asideStatus(), []byte(reason), code, dialect.NeverDue, cl.id32, cl.id, cl.openAs))
	default:
		return cl.storeAside(ctx, tx, row)
	}
	if err == nil && moved != 1 {
		err = ErrLost
	}
	if err == nil {
		err = s.note(ctx, tx, cl.id32, cl.id, putAside, nil)
	}
	if err != nil {
		return fmt.Errorf("park the message: %w", err)
	}
	return nil
}

// parkedReplay returns the reason that [KindReplayed] gives for a parked message.
func (cl *claim) parkedReplay() string {
	if cl.parkedAsReplay {
		return replayRefused
	}
	return replayParked
}

// suppress counts and drops the messages that the handler produced, if the run is suppressed.
func (cl *claim) suppress(produced []*message.Message) []*message.Message {
	if cl.suppressed == nil {
		return produced
	}
	cl.suppressed.Add(len(produced))
	return nil
}

// The reasons of [KindReplayed].
const (
	replayRan        = "ran"
	replayForced     = "ran although refused" // an operator retried it, or the replay named the consumer
	replaySuppressed = "suppressed"           // it ran, but its messages were not sent
	replayRefused    = "refused"
	replayDuplicate  = "duplicate"
	replayQueued     = "queued" // it had failed before, and its queue tries it again
	replayParked     = "parked"
	replayHeld       = "held"
	replayStale      = "stale version"
)

// tellRan reports a replayed message whose run was committed.
func (cl *claim) tellRan() {
	if cl.under(ReplayRefuse) {
		cl.observeReplayed(replayForced, 0)
		return
	}
	if cl.suppressed == nil || cl.suppressed.Count() == 0 {
		cl.observeReplayed(replayRan, 0)
		return
	}
	cl.observeReplayed(replaySuppressed, cl.suppressed.Count())
}

// observeReplayed reports the message, if it was replayed.
func (d *delivery) observeReplayed(reason string, count int) {
	if !d.replayed {
		return
	}
	e := d.event(reason)
	e.Count = count
	d.consumer.store.observers.tellReplayed(d.ctx, d.consumer.store.log, e)
}

// tellReplayed reports a replayed message. Most messages of a replay are duplicates, so the log
// has them at Debug only.
func (o *observers) tellReplayed(ctx context.Context, log watermill.LoggerAdapter, e Event) {
	say := log.Info
	if e.Reason == replayDuplicate {
		say = log.Debug
	}
	say("inbox: a replayed message came", e.fields())
	o.tell(ctx, KindReplayed, e)
}
