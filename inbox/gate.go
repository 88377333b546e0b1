package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// gate lets the messages of each aggregate through in the order of their versions. It is
// safe for concurrent use.
type gate struct{ config GateConfig }

// newGate returns a gate, or an error with all problems of config.
func newGate(config GateConfig) (*gate, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &gate{config: config}, nil
}

// Admit locks the aggregates of msg in the transaction of its [claim] and reports whether the
// handler may run; then it advances their versions in the same transaction. If the handler may not
// run, the caller returns err without running it. Of a decision err is nil: to the middlewares in between no handler has
// failed. [claim.Commit] or [claim.Rollback] then carries the decision out.
func (g *gate) Admit(msg *message.Message) (run bool, err error) {
	cl := claimOf(msg)
	if cl == nil {
		return false, ErrNoTx
	}
	cl.ungated = errPanic
	run, err = cl.askGate(g, msg)
	cl.ungated = err
	return run, err
}

// askGate is Admit in the transaction of cl.
func (cl *claim) askGate(g *gate, msg *message.Message) (run bool, err error) {
	if err := cl.refusesGate(g); err != nil {
		cl.unserved = true
		return false, err
	}
	if !cl.visit.arrived {
		cl.visit.arrived = true
		if !cl.consumer.gated.Load() {
			cl.consumer.gated.Store(true)
		}
		cl.consumer.gaps.arrive()
	}
	if cl.decided { // a middleware in between, such as Retry, asks again in the same transaction
		return cl.verdict == admitted, nil
	}
	cl.gated = msg
	versions, err := g.config.Version(cl.gated)
	if err == nil && len(versions) == 0 {
		err = ErrNoVersion
	}
	var inOrder []versioned
	if err == nil {
		inOrder, err = ordered(versions)
	}
	if cl.step != nil && !cl.step.is(g, inOrder) {
		cl.stepBack()
		return false, nil
	}
	if errors.Is(err, ErrNoVersion) && g.config.Optional {
		cl.compare(g, nil)
		return true, nil
	}
	if err != nil {
		return false, cl.unversioned(err)
	}
	cl.compare(g, inOrder)
	if err := cl.decide(g, inOrder); err != nil && !cl.contended(err) && !cl.inTheWay(err) {
		cl.unserved = dialect.Classify(err).Down()
		return false, fmt.Errorf("version gate: %w", dialect.Unhide(database.Explain(cl.consumer.store.db.Noticed(err))))
	}
	cl.decided = true
	return cl.verdict == admitted, nil
}

// refusesGate returns what is wrong with the settings of a gate at the consumer.
func (cl *claim) refusesGate(g *gate) error {
	switch c := cl.consumer; {
	case c.config.Before != nil:
		return errGateBefore
	case c.former != nil || c.heir != nil:
		return errGateFormer
	case cl.gate != nil && cl.gate != g:
		return errGateTwice
	}
	cl.gate = g
	return nil
}

// errGateTwice says that the inner gate would decide nothing.
var errGateTwice = errors.New("version gate: middleware.VersionGate stands twice on this handler: remove one; " +
	"a message of several aggregates names them all in Version")

// errGateFormer says that FormerKey would lose the applied versions, which belong to the epoch
// before.
var errGateFormer = errors.New("version gate: Inbox.FormerKey needs a raised Epoch, in which the gate does not know the versions applied before: " +
	"leave FormerKey out and rebuild the consumer's state, or keep the Key")

// errGateBefore says that Before comes too early: the gate decides later, in the transaction.
var errGateBefore = errors.New("version gate: Inbox.Before runs for messages that the gate then holds or drops: " +
	"leave Before out, let the handler publish a message through the outbox, and do the work of Before in a consumer of that message")

// claimOf returns the claim of msg whose open transaction is in its context, nil if there is none, and for the context of a
// batch, which is no message's own.
func claimOf(msg *message.Message) *claim {
	t := ambient.From(msg.Context())
	if t == nil || !t.Open() || carried(t, msg) {
		return nil
	}
	if cl, _ := t.Owner.(*claim); cl != nil && cl.batch == nil {
		return cl
	}
	return nil
}

// verdict is the gate's decision about a message.
type verdict int

const (
	admitted  verdict = iota
	stale             // acked, nothing to do
	toHold            // stored until its predecessor is applied
	toPark            // stored for an operator
	postponed         // rolled back, to be claimed again after a wait
)

// errPostponed unwinds a delivery that is postponed.
var errPostponed = errors.New("the message waits at the version gate, and will be tried again")

// advance is a version to which a claim brings an aggregate.
type advance struct {
	versioned
	heldTo int64 // no version above it was ever held
	from   int64 // the version before the run
	jumps  bool  // what is held may follow whatever its version
}

// decide decides about a message with these versions. If another delivery of this process works on
// one of the aggregates, decide gives the transaction up, and the delivery waits in memory instead
// of for a lock.
func (cl *claim) decide(g *gate, versions []versioned) error {
	if cl.knownStale(g, versions) {
		cl.verdict = stale
		return nil
	}
	if cl.step != nil && cl.step.taken {
		cl.verdict, cl.advances = admitted, append(cl.advances, advance{versioned: cl.step.versioned, from: cl.step.Number - 1})
		return nil
	}
	if !cl.visit.enter(cl, versions) {
		return nil
	}
	rows, err := cl.lockPatiently(g, versions)
	if err != nil || cl.verdict == admitted && len(cl.advances) > 0 {
		return err
	}
	if begun := cl.begun(g, versions, rows); len(begun) > 0 && cl.held() && !g.jumps(cl.gated) {
		return cl.awaitBeginning(g, begun)
	} else if len(begun) > 0 {
		cl.postpone(func(ctx context.Context) error { return cl.begin(ctx, begun) })
		return nil
	}
	return cl.judgeVersions(g, versions, rows)
}

// knownStale reports whether this process knows, without asking the database, that the aggregate is
// past the version: versions do not go back while the connection lasts. It reports false for a
// version that may be below the aggregate's first, which only the database knows.
func (cl *claim) knownStale(g *gate, versions []versioned) bool {
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

// advance handles the common case with one statement, which changes one row or none: the version is
// the next one, and no message waits for it.
func (cl *claim) advance(g *gate, versions []versioned) (advanced bool, err error) {
	v := versions[0]
	if len(versions) > 1 || g.begins(cl.gated, v) || cl.early(g, v) {
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
	cl.verdict, cl.advances = admitted, append(cl.advances, advance{versioned: v, from: v.Number - 1})
	return true, nil
}

// early reports whether this process knows that advance would change no row: the message was held
// itself, or its predecessor had not been applied when this process last saw the aggregate. Of a message
// that may jump, it reports true as well if this process has not seen the aggregate.
func (cl *claim) early(g *gate, v versioned) bool {
	if cl.held() {
		return true
	}
	current, known := cl.consumer.store.versions.Get(cl.consumer.prefix + string(v.id))
	if !known {
		return g.jumps(cl.gated)
	}
	return v.Number > following(current)
}

// atOnce reports whether an aggregate may be advanced when it is locked. The gate locks all aggregates of a message before
// it advances any, and one of which it must know from which version it jumps. With GapLatest versions always jump, and
// nothing needs that one.
func (cl *claim) atOnce(g *gate, versions []versioned) bool {
	return len(versions) == 1 && (g.config.OnGap == GapLatest || !g.jumps(cl.gated))
}

// lockOne locks an aggregate and, if advance is set and v may follow, advances it.
func (cl *claim) lockOne(g *gate, v versioned, advance bool) (row stored.Aggregate, err error) {
	gate := &cl.consumer.store.dialect.Gate
	first, from := g.first(cl.gated, v.Number), v.Number-1
	fresh, below := first-1, v.Number
	if g.jumps(cl.gated) {
		from = math.MinInt64
	}
	if !advance {
		below = math.MinInt64
	} else if !g.seeks() && (v.Number == first || g.config.OnGap == GapLatest && v.Number > first) {
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

// first returns the version with which a new aggregate begins.
func (g *gate) first(msg *message.Message, number int64) int64 {
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

// begins reports whether v is or precedes the first version of an aggregate, as far as the configuration says.
func (g *gate) begins(msg *message.Message, v versioned) bool {
	return v.Number == 0 || g.config.First != FirstSeen && v.Number <= g.first(msg, v.Number)
}

// jumps reports whether msg may follow any older version.
func (g *gate) jumps(msg *message.Message) bool {
	return g.config.OnGap == GapLatest || g.config.Starts != nil && g.config.Starts(msg)
}

// relation is how the version of a message relates to the version of its aggregate.
type relation int

const (
	next relation = iota
	older
	equal
	before // below the first version
	ahead
)

func (cl *claim) relate(g *gate, v versioned, row stored.Aggregate) relation {
	own := bytes.Equal(row.MessageID, cl.id) && cl.is(row.Hash)
	by := len(row.MessageID) > 0 // a message applied it; else an operator set it
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

// judgeVersions decides by the relation of each version to its aggregate.
func (cl *claim) judgeVersions(g *gate, versions []versioned, rows []stored.Aggregate) error {
	count := map[relation]int{}
	at := map[relation]int{} // the index of the first version with that relation
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

// admit advances the aggregates that are only locked so far.
func (cl *claim) admit(g *gate, versions []versioned, rows []stored.Aggregate) error {
	atOnce := cl.atOnce(g, versions)
	for i, v := range versions {
		a := advance{v, rows[i].HeldTo, v.Number - 1, g.config.OnGap == GapLatest}
		if !atOnce {
			a.from = rows[i].Version
			if _, err := cl.lockOne(g, v, true); err != nil {
				return fmt.Errorf("advance aggregate %q: %w", v.Aggregate, err)
			}
		}
		cl.advances = append(cl.advances, a)
	}
	cl.verdict = admitted
	return nil
}

// refuse decides to park the message.
func (cl *claim) refuse(v versioned, reason, text string) {
	cl.verdict, cl.waitsFor, cl.because = toPark, v, why{reason, text}
}
