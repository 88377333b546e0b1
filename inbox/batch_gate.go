package inbox

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
)

// run is the messages of a batch that bring one aggregate from version to version, in order.
type run struct {
	id      []byte
	members []*member
	turn    turns.Turn
}

// place reads the version of m. It reports false if the gate must decide about the message by itself: if it names
// no version, or several, or may follow any older version.
func (b *batches) place(m *member) bool {
	if b.gate == nil {
		return true
	}
	versions := b.gate.versionsOf(m.delivery.msg)
	if len(versions) != 1 || b.gate.leaps(m.delivery.msg) {
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

// lineUp takes the turns of the aggregates and returns the members of part that may follow one another, those of
// one aggregate in the order of their versions. It tells the others, as far as this process knows, to end alone.
func (b *batches) lineUp(part []*member) (ready []*member, runs []*run) {
	if b.gate == nil {
		return part, nil
	}
	c := b.consumer
	s := c.store
	found := make(map[string][]*member, len(part))
	for _, m := range part {
		found[string(m.version.id)] = append(found[string(m.version.id)], m)
	}
	for id, members := range found {
		slices.SortStableFunc(members, func(x, y *member) int { return cmp.Compare(x.version.Number, y.version.Number) })
		turn, free := s.aggregates.Try(c.prefix + id)
		next := members[0].version.Number
		if current, known := s.versions.Get(c.prefix + id); known {
			next = current + 1
		}
		r := &run{id: []byte(id), turn: turn}
		for _, m := range members {
			if !free || m.version.Number != next {
				m.say(endedAlone, nil)
				continue
			}
			r.members = append(r.members, m)
			next++
		}
		found[id] = r.members
		switch {
		case len(r.members) > 0:
			runs = append(runs, r)
		case free:
			turn.Fail()
		}
	}
	for _, m := range part { // the first place of an aggregate goes to its first version
		if next := found[string(m.version.id)]; len(next) > 0 && !m.answered {
			ready = append(ready, next[0])
			found[string(m.version.id)] = next[1:]
		}
	}
	slices.SortFunc(runs, func(x, y *run) int { return bytes.Compare(x.id, y.id) })
	return ready, runs
}

// leaveLines frees the turns of the aggregates.
func leaveLines(runs []*run) {
	for _, r := range runs {
		r.turn.Fail()
	}
}

// pass locks the aggregates of the runs and advances them. It returns the members that the gate must decide about
// by themselves; if there are any, the transaction must be rolled back.
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
	}
	runs = slices.DeleteFunc(slices.Clone(runs), func(one *run) bool { return len(one.members) == 0 })
	rows, err := r.lockAggregates(runs)
	if err != nil {
		return nil, err
	}
	var args []any
	for _, one := range runs {
		row := rows[string(one.id)]
		next := row.Version + 1
		for _, m := range one.members {
			if m.version.Number != next || next < row.First {
				aside = append(aside, m)
				continue
			}
			m.claim.advances = []advance{{versioned: m.version, heldTo: math.MinInt64, from: row.Version}}
			next++
		}
		if r.members[0].claim.known == r.consumer.store.db.Generation() {
			r.consumer.store.versions.Raise(r.consumer.prefix+string(one.id), row.Version)
		}
		last := one.members[len(one.members)-1]
		if len(last.claim.advances) > 0 { // it releases what waits for the others too
			last.claim.advances[0].heldTo = row.HeldTo
		}
		args = append(args, r.whole.id32, one.id, last.version.Number, row.First, r.whole.token, last.delivery.id, last.delivery.hash)
	}
	if len(aside) > 0 || len(runs) == 0 {
		return aside, nil
	}
	statement := dialect.Rows(r.consumer.store.dialect.Gate.AdvanceAggregates, len(runs))
	if _, err := r.whole.tx.ExecContext(r.whole.span.tx, statement, args...); err != nil {
		return nil, fmt.Errorf("advance %d aggregates: %w", len(runs), err)
	}
	for range r.members {
		r.consumer.gaps.arrive()
	}
	return nil, nil
}

// lockAggregates locks the rows of the aggregates, in the order in which every transaction locks them, and inserts
// those that are missing.
func (r *batchRun) lockAggregates(runs []*run) (map[string]stored.Aggregate, error) {
	whole, d := r.whole, r.consumer.store.dialect
	rows := make(map[string]stored.Aggregate, len(runs))
	if len(runs) == 0 {
		return rows, nil
	}
	var args []any
	ids := make([][]byte, 0, len(runs))
	for _, one := range runs {
		m := one.members[0]
		first := r.gate.first(m.delivery.msg, m.version.Number)
		args = append(args, whole.id32, one.id, first-1, first, 0, []byte{}, 0)
		ids = append(ids, one.id)
	}
	statement := d.Impatient(dialect.Rows(d.Gate.LockAggregates, len(runs)))
	if _, err := r.patiently(whole.span, whole.tx.Tx, statement, args); err != nil {
		return nil, fmt.Errorf("lock %d aggregates: %w", len(runs), err)
	}
	query, args, err := d.In(d.Gate.SelectAggregates, whole.id32, ids)
	if err != nil {
		return nil, err
	}
	found, err := whole.tx.QueryContext(whole.span.tx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the versions: %w", err)
	}
	defer found.Close() //nolint:errcheck // found.Err tells
	for found.Next() {
		var id []byte
		var row stored.Aggregate
		if err := found.Scan(&id, &row.Version, &row.First, &row.HeldTo); err != nil {
			return nil, fmt.Errorf("read the versions: %w", err)
		}
		rows[string(id)] = row
	}
	return rows, found.Err()
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
