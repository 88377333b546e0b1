package inbox

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// behind is a held message whose predecessor a batch may apply.
type behind struct {
	ID        int64             `db:"id"`
	Aggregate []byte            `db:"aggregate"`
	Version   int64             `db:"version"`
	Code      stored.ReasonCode `db:"reason_code"`
	Size      int               `db:"size"`
}

// follow adds held messages to the runs that they follow, without a gap, as far as there is room in the batch. It
// takes along only what a batch has held as its handler would get it: no middleware sees the message again. The
// others are released, like all if the batch has failed with some.
func (r *batchRun) follow(runs []*run) error {
	whole, batch := r.whole, r.members[0].batch
	queue := r.consumer.store.queueOf(r.consumer.name())
	if queue == nil || batch.apart {
		return nil
	}
	room, size := r.limits.Max, r.limits.MaxBytes
	for _, one := range runs {
		for _, m := range one.members {
			room, size = room-1, size-m.size
		}
	}
	var args []any
	n := 0
	for _, one := range runs {
		if len(one.members) > 0 && one.row.HeldTo > one.last() {
			args, n = append(args, whole.id32, one.id, one.last(), room), n+1
		}
	}
	if n == 0 || room < 1 {
		return nil
	}
	var held []behind
	d := r.consumer.store.dialect
	err := sqlx.SelectContext(whole.span.tx, whole.tx, &held, dialect.UnionAll(d.Gate.SelectBehind, n), args...)
	if err != nil {
		return fmt.Errorf("look for held messages: %w", err)
	}
	slices.SortFunc(held, func(x, y behind) int { return cmp.Compare(x.Version, y.Version) })
	var ids []int64
	for _, one := range runs {
		if len(one.members) > 0 {
			ids = append(ids, one.chain(held, &room, &size)...)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var rows []stored.Message
	if err := r.consumer.store.selectIn(whole.span.tx, whole.tx, &rows, d.Gate.TakeHeld, ids); err != nil {
		return fmt.Errorf("take held messages along: %w", err)
	}
	if len(rows) == len(ids) { // else another transaction has some
		r.join(queue, rows, runs)
	}
	return nil
}

// chain returns which of the held messages follow the run one by one, with its early members in between, and notes
// how far that brings the aggregate.
func (one *run) chain(held []behind, room, size *int) (ids []int64) {
	one.to = one.last()
	early := one.early
	for *room > 0 && one.to < one.row.HeldTo {
		if len(early) > 0 && early[0].version.Number == one.to+1 {
			*size -= early[0].size
			early = early[1:]
		} else {
			i := slices.IndexFunc(held, func(h behind) bool { return h.Version == one.to+1 && bytes.Equal(h.Aggregate, one.id) })
			if i < 0 || held[i].Code != stored.ReasonFollows || held[i].Size > *size {
				break
			}
			ids = append(ids, held[i].ID)
			*size -= held[i].Size
		}
		one.to++
		*room--
	}
	return ids
}

// join adds stored messages to their runs, or none if a copy of one is being handled.
func (r *batchRun) join(queue *Queue, rows []stored.Message, runs []*run) {
	of := make(map[string][]*member, len(runs))
	for _, row := range rows {
		m := r.follower(queue, row)
		if m == nil {
			r.dismiss()
			r.followers = nil
			return
		}
		r.followers = append(r.followers, m)
		of[string(row.Aggregate)] = append(of[string(row.Aggregate)], m)
	}
	for _, one := range runs {
		followers := of[string(one.id)]
		if len(followers) == 0 {
			continue
		}
		one.members[0].claim.followed = int64(len(followers))
		n := 0
		for n < len(one.early) && one.early[n].version.Number <= one.to {
			n++
		}
		one.members = slices.Concat(one.members, followers, one.early[:n])
		one.early = one.early[n:]
		slices.SortFunc(one.members, byVersion)
	}
}

// follower returns a held message as a member of the batch, nil if that cannot be.
func (r *batchRun) follower(queue *Queue, row stored.Message) *member {
	c, s := r.consumer, r.consumer.store
	msg, err := newLeased(queue, row, 0, false).Message(ofRouter{context.Background(), r.whole.delivery.ctx})
	if err != nil {
		return nil
	}
	d, err := c.readDelivery(msg)
	if err != nil || d.keyless.text != "" || d.replayed || d.hash != row.Hash {
		return nil
	}
	m := &member{delivery: d, gathered: gathered{size: len(row.Payload), batch: r.members[0].batch, answered: true}}
	if !r.place(m) || m.version.Number != row.Version.Int64 || !bytes.Equal(m.version.id, row.Aggregate) {
		return nil
	}
	turn, taken := s.turns.Try(d.memoryKey)
	if !taken {
		return nil
	}
	if !s.work.enter() {
		turn.Fail()
		return nil
	}
	m.turn, m.held = turn, true
	r.give(m, r.whole.token)
	m.claim.openRow = false // close does that for all
	return m
}

// dismiss frees the followers, which stay held.
func (r *batchRun) dismiss() {
	for _, m := range r.followers {
		m.release()
	}
}

// close completes the followers' claims and deletes their rows.
func (r *batchRun) close(ctx context.Context, tx *sqlx.Tx) error {
	if len(r.followers) == 0 {
		return nil
	}
	s, whole, ids := r.consumer.store, r.whole, idsOf(r.followers)
	err := s.changeAll(ctx, tx, len(ids), s.dialect.RetakeClaims, whole.token, whole.id32, ids)
	if err == nil {
		err = s.changeAll(ctx, tx, len(ids), s.dialect.DeleteMessages, whole.id32, ids)
	}
	if err != nil {
		return fmt.Errorf("close %d held messages: %w", len(ids), err)
	}
	return nil
}

// part reports the followers as handled, after the commit.
func (r *batchRun) part() {
	for _, m := range slices.Backward(r.followers) {
		defer m.claim.succeed(nil, false) // even if an observer panics
	}
	for _, m := range r.followers {
		m.delivery.observe(KindReceived, "received", nil)
	}
}

// ofRouter is a context with the values that a router gives its messages. A follower has passed the router's
// middlewares when it was held, and has none of the values that they gave it then, nor those of another message.
type ofRouter struct {
	context.Context //nolint:containedctx // it is one

	by context.Context //nolint:containedctx // only its values are used
}

// Value asks the other context only for what the router has put there.
func (c ofRouter) Value(key any) any {
	if t := reflect.TypeOf(key); t != nil && t.PkgPath() == routersPackage {
		return c.by.Value(key)
	}
	return c.Context.Value(key)
}

var routersPackage = reflect.TypeFor[message.Router]().PkgPath()
