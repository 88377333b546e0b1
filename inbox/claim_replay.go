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

// String returns what the rule is called.
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
// has forgotten. One that it has completed is a duplicate under every rule.
type ReplayRule int

// What can happen to a replayed message.
const (
	// ReplayAllow treats it like every delivery. The handler may ask [IsReplay].
	ReplayAllow ReplayRule = iota
	// ReplaySuppress runs the handler and commits its effects, but what it would send is not
	// sent: the messages that it returns, and those that it publishes with its context through an
	// outbox.Publisher. They are counted. Nor is sent what a message would have sent that is
	// replayed before it was handled for the first time.
	ReplaySuppress
	// ReplayRefuse parks it, so that nothing outside of the transaction happens twice. After
	// admin.Admin.Retry the handler runs.
	ReplayRefuse
)

// IsReplay reports whether the message is a replayed one that the handler of ctx has from
// middleware.Inbox or middleware.Deduplicate.
func IsReplay(ctx context.Context) bool {
	is, _ := ctx.Value(replayKey{}).(bool)
	return is
}

type replayKey struct{}

// replayed returns what msg says of its replay.
func replayed(msg *message.Message) (name string, is bool) {
	name, is = msg.Metadata[ReplayField]
	return name, is
}

// replayContext returns a context for the handler of msg: ctx, unless it is silent or, because
// it comes from the handler of another message, wrong.
func replayContext(ctx context.Context, msg *message.Message) context.Context {
	if _, is := replayed(msg); is != IsReplay(ctx) {
		return context.WithValue(ctx, replayKey{}, is)
	}
	return ctx
}

// under reports whether d is a replayed message, and rule what its consumer does with those.
func (d *delivery) under(rule ReplayRule) bool {
	return d.replayed && !d.asFirstSent && d.consumer.config.OnReplay == rule
}

// refuses reports whether the message must not be handled because it was replayed. What an operator has asked
// for, since it was stored, is handled.
func (cl *Claim) refuses(ctx context.Context, db sqlx.QueryerContext, what move) (bool, error) {
	if !cl.under(ReplayRefuse) || what == insert && cl.lease == nil {
		return cl.under(ReplayRefuse), nil
	}
	var allowed bool
	err := sqlx.GetContext(ctx, db, &allowed, cl.consumer.store.dialect.Queue.SelectAllowed, cl.id32, cl.id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) { // without a row nobody can have asked
		return false, fmt.Errorf("look whether an operator wants the replayed message handled: %w", err)
	}
	return !allowed, nil
}

// refusal is why a replayed message is parked.
func (d *delivery) refusal() why {
	return why{ReasonReplayed, fmt.Sprintf(
		reserved.Refused+"%.200q, and this consumer refuses replayed messages: Retry has it handled all the same", d.replay)}
}

// park stores the message for an operator, in the transaction of its claim, which is open.
func (cl *Claim) park(ctx context.Context, tx *sqlx.Tx, reason string) error {
	s, code := cl.consumer.store, stored.ReasonOther
	if cl.refused {
		code = stored.ReasonReplayed
	}
	var moved int64
	var err error
	switch {
	case cl.lease != nil && cl.collidedWith == nil: // a collision has a row of its own
		moved, err = database.Affected(tx.ExecContext(ctx, s.dialect.Queue.ParkLeased,
			[]byte(reason), code, dialect.NeverDue, cl.id32, cl.id, cl.lease.token))
	case cl.openRow:
		moved, err = database.Affected(tx.ExecContext(ctx, s.dialect.MoveMessage,
			cl.asideStatus(), []byte(reason), code, dialect.NeverDue, cl.id32, cl.id, stored.FailedRetryable))
	default:
		return cl.storeAside(ctx, tx, openMessage{status: cl.asideStatus(), reason: reason, code: code, delay: dialect.NeverDue})
	}
	if err == nil && moved != 1 {
		err = ErrLost
	}
	if err == nil {
		err = s.note(ctx, tx, cl.id32, cl.id, putAside)
	}
	if err != nil {
		return fmt.Errorf("park the message: %w", err)
	}
	return nil
}

// parkedReplay says what became of a replayed message that was parked.
func (cl *Claim) parkedReplay() string {
	if cl.refused {
		return replayRefused
	}
	return replayParked
}

// suppress returns what is sent of what the handler produced: nothing where it is suppressed.
func (cl *Claim) suppress(produced []*message.Message) []*message.Message {
	if cl.suppressed == nil {
		return produced
	}
	cl.suppressed.Add(len(produced))
	return nil
}

// What became of a replayed message.
const (
	replayRan        = "ran"
	replayForced     = "ran although refused" // an operator wanted it, or who replays named the consumer
	replaySuppressed = "suppressed"           // it ran, but what it would have sent was not sent
	replayRefused    = "refused"
	replayDuplicate  = "duplicate"
	replayQueued     = "queued" // what had failed is with its queue again
	replayParked     = "parked"
	replayHeld       = "held"
	replayStale      = "stale version"
)

// tellRan tells of a replayed message whose run was committed.
func (cl *Claim) tellRan() {
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

// observeReplayed tells what became of a message, if it was replayed.
func (d *delivery) observeReplayed(reason string, count int) {
	if !d.replayed {
		return
	}
	e := d.event(reason)
	e.Count = count
	d.consumer.store.observers.tellReplayed(d.ctx, d.consumer.store.log, e)
}

// tellReplayed tells what became of a replayed message. Duplicates are most of a replay, so
// they are no news.
func (o *observers) tellReplayed(ctx context.Context, log watermill.LoggerAdapter, e Event) {
	say := log.Info
	if e.Reason == replayDuplicate {
		say = log.Debug
	}
	say("inbox: a replayed message came", e.fields())
	o.tell(ctx, KindReplayed, e)
}
