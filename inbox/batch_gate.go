package inbox

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
)

// run is the messages of a batch that belong to one aggregate, in the order of their versions.
type run struct {
	id      []byte
	turn    turns.Turn
	row     stored.Aggregate
	members []*member // that bring the aggregate from its version to the last of theirs
	early   []*member // behind a gap
	passed  []*member // that the first of members passes over, with GapLatest
}

// last returns the version to which the run brings the aggregate.
func (one *run) last() int64 {
	if n := len(one.members); n > 0 {
		return one.members[n-1].version.Number
	}
	return one.row.Version
}

// place reads the version of m. It reports false if the gate must decide about the message by itself: if it names
// no version, or several, or begins an aggregate.
func (b *batches) place(m *member) bool {
	if b.gate == nil {
		return true
	}
	versions := b.gate.versionsOf(m.delivery.msg)
	if len(versions) != 1 || b.gate.starts(m.delivery.msg) {
		return false
	}
	m.version = versions[0]
	return true
}

// alone is the handler of a message that is in no batch, inside the gate if there is one.
func (b *batches) alone(msg *message.Message) ([]*message.Message, error) {
	if b.gate != nil {
		if run, err := b.gate.Admit(msg); !run {
			return nil, err
		}
	}
	return b.handler(msg.Context(), []*message.Message{msg})
}

// holds reports whether messages with a gap are held at once: if one waited in memory, it could keep others from
// forming a batch.
func (b *batches) holds() bool {
	return b != nil && b.gate != nil && b.gate.config.OnGap == GapHold && b.consumer.store.bellOf(b.consumer.name()) != nil
}

// latest reports whether only the newest message of each aggregate is handled.
func (b *batches) latest() bool { return b.gate != nil && b.gate.config.OnGap == GapLatest }

// lineUp takes the turns of the aggregates and returns the members of part that the batch can handle or hold. It
// tells the others, as far as this process knows, to end alone.
func (b *batches) lineUp(part []*member) (ready []*member, runs []*run) {
	if b.gate == nil {
		return part, nil
	}
	c := b.consumer
	s, holds := c.store, b.holds()
	found := make(map[string]*run, len(part))
	for _, m := range part {
		one := found[string(m.version.id)]
		if one == nil {
			one = &run{id: m.version.id}
			found[string(m.version.id)] = one
		}
		one.members = append(one.members, m)
	}
	for id, one := range found {
		turn, free := s.aggregates.Try(c.prefix + id)
		slices.SortStableFunc(one.members, byVersion)
		applied, known := s.versions.Get(c.prefix + id)
		if !known {
			applied = one.members[0].version.Number - 1
		}
		for _, m := range one.members {
			switch number := m.version.Number; {
			case free && number > applied && (number == following(applied) || b.latest()):
				applied = number
			case !free || number <= applied || !holds || m.delivery.lease != nil:
				m.say(endedAlone, nil)
			}
		}
		one.members = slices.DeleteFunc(one.members, func(m *member) bool { return m.answered })
		switch {
		case len(one.members) > 0:
			one.turn = turn
			runs = append(runs, one)
		case free:
			turn.Fail()
		}
	}
	ready = slices.DeleteFunc(slices.Clone(part), func(m *member) bool { return m.answered })
	slices.SortFunc(runs, func(x, y *run) int { return bytes.Compare(x.id, y.id) })
	return ready, runs
}

func byVersion(x, y *member) int { return cmp.Compare(x.version.Number, y.version.Number) }

// lineup is the turns of a batch's aggregates, which the last of its users frees.
type lineup struct {
	runs  []*run
	users atomic.Int32
}

// enter adds a user.
func (l *lineup) enter() (leave func()) {
	l.users.Add(1)
	return l.leave
}

func (l *lineup) leave() {
	if l.users.Add(-1) > 0 {
		return
	}
	for _, r := range l.runs {
		r.turn.Fail()
	}
}

// pass locks the aggregates of the runs and advances them, and holds the messages behind a gap. It returns the
// members that the gate must decide about by themselves; if there are any, the transaction must be rolled back.
func (r *batchRun) pass(runs []*run) (aside []*member, err error) {
	if r.gate == nil {
		return nil, nil
	}
	won := make(map[*member]bool, len(r.members))
	for _, m := range r.members {
		won[m] = true
	}
	for _, one := range runs {
		one.members = slices.DeleteFunc(one.members, func(m *member) bool { return !won[m] })
		one.early, one.passed = nil, nil
	}
	runs = slices.DeleteFunc(slices.Clone(runs), func(one *run) bool { return len(one.members) == 0 })
	if err := r.lockAggregates(runs); err != nil {
		return nil, err
	}
	if r.gate.seeks() {
		for _, one := range runs {
			if one.row.Token == r.whole.token {
				r.begun = append(r.begun, one.members[0].version)
				aside = append(aside, slices.DeleteFunc(slices.Clone(one.members), func(m *member) bool { return !m.delivery.held() })...)
			}
		}
		if len(aside) > 0 { // the gate holds them until others begin their aggregates
			r.begun = nil
			return aside, nil
		}
		if len(r.begun) > 0 {
			return nil, errPostponed
		}
	}
	holds, latest := r.holds(), r.latest()
	for _, one := range runs {
		if latest {
			aside = append(aside, one.passOver()...)
		} else {
			aside = append(aside, one.compare(holds)...)
		}
		if r.members[0].claim.known == r.consumer.store.db.Generation() {
			r.consumer.store.versions.Raise(r.consumer.prefix+string(one.id), one.row.Version)
		}
	}
	if len(aside) > 0 || len(runs) == 0 {
		return aside, nil
	}
	if aside, err = r.hold(runs); len(aside) > 0 || err != nil {
		return aside, err
	}
	if err := r.advanceAggregates(runs); err != nil {
		return nil, err
	}
	if err := r.forgetPassed(runs); err != nil {
		return nil, err
	}
	for range r.members {
		r.consumer.gaps.arrive()
	}
	r.arrange(runs)
	return nil, nil
}

// compare leaves those members in the run that follow the version of the aggregate. It returns those that the gate
// must decide about by themselves.
func (one *run) compare(holds bool) (aside []*member) {
	applied, all := one.row.Version, one.members
	one.members = nil
	for _, m := range all {
		switch number := m.version.Number; {
		case number > applied && number == following(applied) && number >= one.row.First:
			one.members = append(one.members, m)
			applied = number
		case number > following(applied) && holds && m.delivery.lease == nil:
			one.early = append(one.early, m)
		default:
			aside = append(aside, m)
		}
	}
	return aside
}

// passOver is compare where only the newest member is handled.
func (one *run) passOver() (aside []*member) {
	seen, all := one.row.Version, one.members // without a gap
	one.members = nil
	for i, m := range all {
		if m.version.Number <= seen || m.version.Number < one.row.First {
			aside = append(aside, m)
			continue
		}
		if m.version.Number == following(seen) {
			seen = m.version.Number
		}
		if i < len(all)-1 {
			m.claim.verdict = stale
			one.passed = append(one.passed, m)
			continue
		}
		if m.version.Number > seen && one.row.Version >= one.row.First {
			m.gap = overtakes(m.version, following(seen))
		}
		one.members = append(one.members, m)
	}
	return aside
}

// forgetPassed drops the claims of messages that are passed over, which were not handled: a copy will be stale too.
func (r *batchRun) forgetPassed(runs []*run) error {
	var ids [][]byte
	for _, one := range runs {
		for _, m := range one.passed {
			if m.delivery.lease == nil { // else the claim goes on to tell that the row was closed
				ids = append(ids, m.delivery.id)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return r.consumer.store.dropClaims(r.whole.span.tx, r.whole.tx.Tx, r.whole.id32, r.whole.token, ids...)
}

// arrange leaves the members of the runs for the handler, where the first of each aggregate has arrived.
func (r *batchRun) arrange(runs []*run) {
	of := make(map[string]*run, len(runs))
	for _, one := range runs {
		of[string(one.id)] = one
		r.aside = slices.Concat(r.aside, one.early, one.passed)
	}
	arrived := r.members
	r.members = nil
	for _, m := range arrived {
		if one := of[string(m.version.id)]; one != nil {
			r.members = append(r.members, one.members...)
			delete(of, string(m.version.id))
		}
	}
	if len(r.members) > 0 { // the transaction is known by a claim that stays completed
		r.whole.delivery = r.members[0].delivery
	}
}

// lockAggregates locks and reads the rows of the aggregates, in the order in which every transaction locks them, and
// inserts those that are missing.
func (r *batchRun) lockAggregates(runs []*run) error {
	whole, d := r.whole, r.consumer.store.dialect
	if len(runs) == 0 {
		return nil
	}
	var args []any
	token := int64(0)
	if r.gate.seeks() {
		token = whole.token
	}
	ids, rows := make([][]byte, 0, len(runs)), make(map[string]*stored.Aggregate, len(runs))
	for _, one := range runs {
		m := one.members[0]
		first := r.gate.first(m.delivery.msg, m.version.Number)
		args = append(args, whole.id32, one.id, first-1, first, token, []byte{}, 0)
		ids, rows[string(one.id)] = append(ids, one.id), &one.row
	}
	statement := d.Impatient(dialect.Rows(d.Gate.LockAggregates, len(runs)))
	if _, err := r.patiently(whole.span, whole.tx.Tx, statement, args); err != nil {
		return fmt.Errorf("lock %d aggregates: %w", len(runs), err)
	}
	query, args, err := d.In(d.Gate.SelectAggregates, whole.id32, ids)
	if err != nil {
		return err
	}
	found, err := whole.tx.QueryContext(whole.span.tx, query, args...)
	if err != nil {
		return fmt.Errorf("read the versions: %w", err)
	}
	defer found.Close() //nolint:errcheck // found.Err tells
	for found.Next() {
		var id []byte
		var row stored.Aggregate
		if err := found.Scan(&row.Version, &row.First, &row.HeldTo, &row.Token, &row.MessageID, &row.Hash, &id); err != nil {
			return fmt.Errorf("read the versions: %w", err)
		}
		*rows[string(id)] = row
	}
	return found.Err()
}

// advanceAggregates brings the aggregates to the last versions of their runs, and records what they hold.
func (r *batchRun) advanceAggregates(runs []*run) error {
	var args []any
	for _, one := range runs {
		for _, m := range one.members {
			m.claim.advances = []advance{{versioned: m.version, heldTo: math.MinInt64, from: one.row.Version, jumps: r.latest()}}
		}
		to, held := one.row, int64(0)
		if n := len(one.members); n > 0 {
			last := one.members[n-1]
			if one.row.HeldTo > one.row.Version {
				last.claim.advances[0].heldTo = math.MaxInt64 // it releases what waits for the others too
			}
			to.Version, to.Token, to.MessageID, to.Hash = last.version.Number, r.whole.token, last.delivery.id, last.delivery.hash
		}
		if n := len(one.early); n > 0 {
			held = one.early[n-1].version.Number
		}
		args = append(args, r.whole.id32, one.id, to.Version, to.First, to.Token, append([]byte{}, to.MessageID...), to.Hash, held)
	}
	statement := dialect.Rows(r.consumer.store.dialect.Gate.AdvanceAggregates, len(runs))
	if _, err := r.whole.tx.ExecContext(r.whole.span.tx, statement, args...); err != nil {
		return fmt.Errorf("advance %d aggregates: %w", len(runs), err)
	}
	return nil
}

// rememberVersions notes the new versions while the run has the turns of the aggregates.
func (r *batchRun) rememberVersions() {
	for _, m := range r.members {
		m.claim.rememberVersions()
	}
}

// gated returns the gate of config, nil if there is none.
func gated(config *GateConfig) (*gate, error) {
	if config == nil {
		return nil, nil
	}
	return newGate(*config)
}
