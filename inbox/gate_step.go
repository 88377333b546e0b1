package inbox

import (
	"context"

	"github.com/jmoiron/sqlx"
)

// step is the advance of the aggregate of a message in the statement that claims the message, which saves a round
// trip. The gate, which decides after the middlewares between it and the inbox, confirms the step; otherwise the
// delivery is rolled back and made again without it.
type step struct {
	gate *gate
	versioned
	taken bool // the aggregate is advanced
}

// nextStep returns the step that a claim may take, nil for none. Like [claim.foresee] it is a guess: the statement
// itself advances an aggregate only to its next version, and only if no message waits for that. With the step the
// delivery has the turn of the aggregate.
func (cl *claim) nextStep() (next *step) {
	defer func() {
		if recover() != nil { // a function of the service panics: the gate says so
			next = nil
		}
	}()
	c, s, g := cl.consumer, cl.consumer.store, cl.consumer.gate.Load()
	if s.dialect.Gate.ClaimAndAdvance == "" || g == nil || cl.lease != nil || cl.visit.unstepped {
		return nil
	}
	if !cl.visit.foresaw {
		cl.visit.foreseen, cl.visit.foresaw = g.versionsOf(cl.msg), true
	}
	versions := cl.visit.foreseen
	if len(versions) != 1 || g.jumps(cl.msg) || g.begins(cl.msg, versions[0]) {
		return nil
	}
	v := versions[0]
	if current, known := s.versions.Get(c.prefix + string(v.id)); known && v.Number != current+1 {
		return nil
	}
	if _, entered := cl.visit.enterNow(cl, versions); !entered {
		return nil
	}
	return &step{gate: g, versioned: v}
}

// claimAndStep claims the key and takes the step, and reports whether the key is now ours.
func (cl *claim) claimAndStep(span *span, tx *sqlx.Tx) (won bool, err error) {
	d, v := cl.delivery, cl.step.versioned
	late := &lockedError{v.Aggregate, cl.consumer.config.TwinWait}
	rows, err := cl.execPatiently(span, tx, late, cl.consumer.store.dialect.Gate.ClaimAndAdvance,
		cl.id32, d.id, d.hash, d.token, v.Number, v.id, v.Number-1)
	cl.step.taken = rows == 2
	return rows > 0, err
}

// is reports whether g, with these versions, would take the step.
func (st *step) is(g *gate, versions []versioned) bool {
	return st.gate == g && sameVersions(versions, []versioned{st.versioned})
}

// confirmStep refuses a step whose message a middleware kept from the gate.
func (cl *claim) confirmStep() {
	if cl.step != nil && cl.step.taken && !cl.decided && cl.ungated == nil {
		cl.stepBack()
	}
}

// stepBack has the delivery made again, without a step: the gate does not confirm the one that was taken. From then on
// the consumer foresees nothing.
func (cl *claim) stepBack() {
	c := cl.consumer
	c.unforeseen.Store(true)
	c.gate.Store(nil)
	cl.visit.leave()
	cl.decided = true
	cl.postpone(func(context.Context) error { return nil })
}
