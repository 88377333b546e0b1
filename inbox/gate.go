package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// Gate lets the messages of each aggregate through in the order of their versions. It is
// safe for concurrent use.
type Gate struct{ config GateConfig }

// newGate returns a Gate. All problems of config are reported at once.
func newGate(config GateConfig) (*Gate, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &Gate{config: config}, nil
}

// Admit locks the aggregates of msg in the transaction of its [Claim] and reports whether
// the handler may run: then their versions are advanced in the same transaction. If it may
// not, the caller returns err, which may be nil, without running the handler;
// [Claim.Commit] and [Claim.Rollback] know what is to become of the message.
func (g *Gate) Admit(msg *message.Message) (run bool, err error) {
	cl := claimOf(msg.Context())
	if cl == nil {
		return false, ErrNoTx
	}
	if cl.consumer.config.Before != nil {
		return false, errGateBefore
	}
	if c := cl.consumer; c.former != nil || c.heir != nil {
		return false, errGateFormer
	}
	if len(cl.visit.turns) == 0 && cl.visit.contended == 0 {
		cl.consumer.gaps.arrive()
	}
	if cl.decided { // someone in between asks again in the same transaction
		return cl.verdict == admitted, cl.refusal()
	}
	cl.gated = msg
	versions, err := g.config.Version(cl.gated)
	if err == nil && len(versions) == 0 {
		err = ErrNoVersion
	}
	if errors.Is(err, ErrNoVersion) && g.config.Optional {
		return true, nil
	}
	var steps []versioned
	if err == nil {
		steps, err = ordered(versions)
	}
	if err != nil {
		return false, cl.unversioned(err)
	}
	if err := cl.pass(g, steps); err != nil && !cl.contended(err) && !cl.inTheWay(err) {
		cl.unserved = dialect.Classify(err).Down()
		return false, fmt.Errorf("version gate: %w", dialect.Unhide(database.Explain(cl.consumer.store.db.Noticed(err))))
	}
	cl.decided = true
	return cl.verdict == admitted, cl.refusal()
}

// errGateFormer refuses what would forget: which versions were applied belongs to the epoch.
var errGateFormer = errors.New("version gate: Inbox.FormerKey needs a raised Epoch, in which the gate knows no version that was applied before: " +
	"leave FormerKey out and have the consumer built anew, or keep the Key")

// errGateBefore refuses what cannot be right: the gate decides in the transaction.
var errGateBefore = errors.New("version gate: Inbox.Before runs for messages that the gate then holds or passes over: " +
	"leave Before out, have the handler publish what is to be done through the outbox, and do it in a consumer of its own")

// claimOf returns the claim whose transaction is in ctx.
func claimOf(ctx context.Context) *Claim {
	t := ambient.From(ctx)
	if t == nil || !t.Open() {
		return nil
	}
	cl, _ := t.Owner.(*Claim)
	return cl
}

// verdict is what becomes of a message at the gate.
type verdict int

const (
	admitted  verdict = iota
	stale             // acked, nothing to do
	toHold            // stored until its predecessor is applied
	toPark            // stored for an operator
	postponed         // rolled back, to be tried again when something has happened
)

// errPostponed unwinds a delivery that will be tried again.
var errPostponed = errors.New("the message waits at the version gate, and will be tried again")

func (cl *Claim) refusal() error {
	if cl.verdict == postponed {
		return errPostponed
	}
	return nil
}

// advance is a version that a claim brings an aggregate to.
type advance struct {
	versioned
	heldTo int64 // the greatest version that ever waited
}

// pass decides about a message that brings these versions. Nobody waits for a lock that
// is held in this process: the transaction is given up and the wait is in memory.
func (cl *Claim) pass(g *Gate, versions []versioned) error {
	if cl.past(g, versions) {
		cl.verdict = stale
		return nil
	}
	if !cl.visit.enter(cl, versions) {
		return nil
	}
	rows, err := cl.lockPatiently(g, versions)
	if err != nil || cl.verdict == admitted && len(cl.advances) > 0 {
		return err
	}
	return cl.judgeVersions(g, versions, rows)
}

// gatePatience bounds the wait for aggregates: it is TwinWait, and leaves a slow server the time that it needs by itself.
func (c *ConsumerConfig) gatePatience() time.Duration { return max(c.TwinWait, time.Second) }

// lockPatiently locks the aggregates, and may advance one at once. For another process that has them it waits
// for TwinWait, which is not the handler's time. Where there is one writer, nobody else can have them.
func (cl *Claim) lockPatiently(g *Gate, versions []versioned) (rows []stored.Aggregate, err error) {
	if cl.consumer.store.dialect.OneWriter {
		return cl.lock(g, versions)
	}
	patience := cl.consumer.config.gatePatience()
	waits := cl.span.wait(patience)
	rows, err = cl.lock(g, versions)
	if waits && !cl.span.resume() {
		return nil, &lockedError{versions[min(len(rows), len(versions)-1)].Aggregate, patience}
	}
	return rows, err
}

// lock returns none where the version was advanced at once, and those that were locked before an error.
func (cl *Claim) lock(g *Gate, versions []versioned) (rows []stored.Aggregate, err error) {
	if advanced, err := cl.advance(g, versions); advanced || err != nil {
		return nil, err
	}
	for _, v := range versions {
		if err := cl.leap(g, v); err != nil {
			return rows, fmt.Errorf("look at aggregate %q: %w", v.Aggregate, err)
		}
		row, err := cl.step(g, v, len(versions) == 1)
		if err != nil {
			return rows, fmt.Errorf("lock aggregate %q: %w", v.Aggregate, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// A lockedError says that another process works on an aggregate, and did not end within TwinWait.
type lockedError struct {
	aggregate string
	twinWait  time.Duration
}

func (e *lockedError) Error() string {
	return fmt.Sprintf("version gate: another process works on aggregate %q, and was not done within TwinWait, %v", e.aggregate, e.twinWait)
}

func (e *lockedError) Is(target error) bool { return target == ErrInProgress } //nolint:errorlint // that is what Is is asked

// inTheWay reports whether err says that others did not let the message reach its handler. It comes again, and
// that was no attempt.
func (cl *Claim) inTheWay(err error) bool {
	var locked *lockedError
	if !errors.As(err, &locked) && dialect.Classify(err) != dialect.Contention {
		return false
	}
	cl.consumer.store.observeContention(cl.delivery, err)
	cl.visit.leave()
	cl.postpone(func(context.Context) error { return err })
	return true
}

// past reports whether this process knows that an aggregate is past the version, without
// asking the database: versions are never taken back while the connection lasts. What may be
// before the beginning is for the database to say.
func (cl *Claim) past(g *Gate, versions []versioned) bool {
	v := versions[0]
	if len(versions) > 1 || g.config.First == FirstSeen || g.jumps(cl.gated) || v.Number < g.first(cl.gated, v.Number) {
		return false
	}
	s, aggregate := cl.consumer.store, cl.consumer.prefix+string(v.id)
	current, known := s.versions.Get(aggregate)
	if !known || v.Number >= current {
		return false
	}
	reached, known := s.reached.Get(aggregate)
	return known && v.Number >= reached
}

// advance lets through what is next and has nobody waiting for it, which is the rule, with
// one statement that changes a row or none.
func (cl *Claim) advance(g *Gate, versions []versioned) (advanced bool, err error) {
	v := versions[0]
	begins := g.config.First != FirstSeen && v.Number <= g.first(cl.gated, v.Number)
	if len(versions) > 1 || v.Number == 0 || begins || g.jumps(cl.gated) || cl.early(v) {
		return false, nil
	}
	n, err := database.Affected(cl.tx.ExecContext(cl.span.tx, cl.consumer.store.dialect.Gate.AdvanceAggregate,
		v.Number, cl.token, cl.id, cl.hash, cl.id32, v.id, v.Number-1, v.Number))
	if err != nil {
		return false, fmt.Errorf("advance aggregate %q: %w", v.Aggregate, err)
	}
	if n == 0 {
		return false, nil
	}
	cl.verdict, cl.advances = admitted, append(cl.advances, advance{versioned: v})
	return true, nil
}

// early reports whether this process knows that v is not what comes next with nobody waiting:
// its message was held itself, or its predecessor was not applied when we looked last.
func (cl *Claim) early(v versioned) bool {
	if cl.lease != nil && cl.lease.row.Aggregate != nil {
		return true
	}
	current, known := cl.consumer.store.versions.Get(cl.consumer.prefix + string(v.id))
	return known && v.Number > current+1
}

// step locks an aggregate and, if it may, advances it at once. A message of several
// aggregates looks at all of them first.
func (cl *Claim) step(g *Gate, v versioned, advance bool) (row stored.Aggregate, err error) {
	gate := &cl.consumer.store.dialect.Gate
	first, from := g.first(cl.gated, v.Number), v.Number-1
	fresh, below := first-1, v.Number
	if g.jumps(cl.gated) {
		from = math.MinInt64
	}
	if !advance {
		below = math.MinInt64
	} else if v.Number == first || g.jumps(cl.gated) && v.Number > first {
		fresh = v.Number
	}
	args := []any{cl.id32, v.id, fresh, first, cl.token, cl.id, cl.hash, from, below, v.Number}
	if gate.Returning {
		return row, row.Scan(cl.tx.QueryRowContext(cl.span.tx, gate.StepAggregate, args...))
	}
	if _, err = cl.tx.ExecContext(cl.span.tx, gate.StepAggregate, args...); err != nil {
		return row, err
	}
	return row, row.Scan(cl.tx.QueryRowContext(cl.span.tx, gate.SelectAggregate, cl.id32, v.id))
}

// first is the version with which a new aggregate begins.
func (g *Gate) first(msg *message.Message, number int64) int64 {
	switch {
	case g.config.OnGap == GapLatest:
		return 0
	case g.config.First == FirstSeen, g.config.Starts != nil && g.config.Starts(msg):
		return number
	case g.config.First == FirstIsZero:
		return 0
	}
	return 1
}

// jumps reports whether msg may follow any older version.
func (g *Gate) jumps(msg *message.Message) bool {
	return g.config.OnGap == GapLatest || g.config.Starts != nil && g.config.Starts(msg)
}

// relation is how a version relates to the one its aggregate has.
type relation int

const (
	next relation = iota
	older
	equal
	before // the first
	ahead
)

func (cl *Claim) relate(g *Gate, v versioned, row stored.Aggregate) relation {
	own := bytes.Equal(row.MessageID, cl.id) && cl.is(row.Hash)
	by := len(row.MessageID) > 0 // else an operator set it
	switch {
	case v.Number < row.First:
		return before
	case v.Number == row.Version && row.Token == cl.token:
		return next
	case v.Number == row.Version && by && !own:
		return equal
	case v.Number <= row.Version:
		return older
	case v.Number == row.Version+1, g.jumps(cl.gated):
		return next
	}
	return ahead
}

// judgeVersions decides by how each version relates to its aggregate's.
func (cl *Claim) judgeVersions(g *Gate, versions []versioned, rows []stored.Aggregate) error {
	count := map[relation]int{}
	at := map[relation]int{} // the first of its kind
	for i, v := range versions {
		r := cl.relate(g, v, rows[i])
		if count[r]++; count[r] == 1 {
			at[r] = i
		}
	}
	v := func(r relation) (versioned, stored.Aggregate) { return versions[at[r]], rows[at[r]] }
	switch {
	case count[before] > 0 && g.config.OnBeforeFirst == VersionPark:
		v, row := v(before)
		cl.refuse(v, ReasonVersion, fmt.Sprintf("before the beginning: %s, whose first version here is %d", v.Version, row.First))
	case count[equal] > 0 && g.config.OnCollision == VersionPark:
		v, _ := v(equal)
		cl.refuse(v, ReasonCollision, fmt.Sprintf("%s was applied by another message", v.Version))
	case count[ahead] > 0:
		v, row := v(ahead)
		return cl.gap(g, v, row)
	case count[next] == len(versions):
		return cl.admit(g, versions, rows)
	case count[next] == 0:
		cl.verdict = stale
	default:
		v, row := v(next)
		cl.refuse(v, ReasonVersion, fmt.Sprintf("%s may follow version %d, but another aggregate of the message is past it",
			v.Version, row.Version))
	}
	return nil
}

// admit advances what was only locked so far.
func (cl *Claim) admit(g *Gate, versions []versioned, rows []stored.Aggregate) error {
	for i, v := range versions {
		if len(versions) > 1 {
			row, err := cl.step(g, v, true)
			if err != nil {
				return fmt.Errorf("advance aggregate %q: %w", v.Aggregate, err)
			}
			rows[i] = row
		}
		cl.advances = append(cl.advances, advance{v, rows[i].HeldTo})
	}
	cl.verdict = admitted
	return nil
}

// refuse has the message parked.
func (cl *Claim) refuse(v versioned, reason, text string) {
	cl.verdict, cl.waitsFor, cl.because = toPark, v, why{reason, text}
}
