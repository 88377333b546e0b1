package inbox

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/internal/owned"
)

const (
	// batchPatience bounds how long a batch waits for another process that has one of its keys, unless a fifth of
	// TwinWait is longer. Then each message is handled by itself, and only the copies wait longer.
	batchPatience = time.Second

	// batchAnswer is how much longer the server may take to say so.
	batchAnswer = time.Second

	// batchTries is how often a batch tries to claim its keys before each message is handled by itself.
	batchTries = 5
)

func (b *batches) patience() time.Duration { return max(batchPatience, b.consumer.config.TwinWait/5) }

// claim begins a transaction that claims the keys of part. Members whose keys it does not get are told to end
// alone. It returns nil if all members are to be handled by themselves.
func (b *batches) claim(part []*member) *batchRun {
	s, began := b.consumer.store, time.Now()
	for try := 0; try < batchTries && len(part) > 1; try++ {
		first := &claim{delivery: part[0].delivery, visit: &visit{}}
		pass, err := first.enterOutage()
		if err != nil {
			return nil
		}
		r, rest, err := b.claimGuarded(&pass, first, part)
		if err == nil {
			s.answers(pass)
			if r != nil {
				return r
			}
			part = rest
			continue
		}
		if !first.endMove(pass, err, try) {
			return nil
		}
		s.observeContention(first.delivery, err)
		if time.Since(began) > b.patience() || database.Pause(part[0].batch.ctx, try) != nil {
			return nil
		}
	}
	return nil
}

// claimGuarded is claimOnce. If a user's function panics in it, another delivery may probe the database.
func (b *batches) claimGuarded(pass *outage.Pass, first *claim, part []*member) (r *batchRun, rest []*member, err error) {
	returned := false
	defer func() {
		if !returned {
			pass.Cancel()
		}
	}()
	r, rest, err = b.claimOnce(pass, first, part)
	returned = true
	return r, rest, err
}

// claimOnce tries to claim the keys of part. Where that leaves some that must not be in the transaction, it rolls
// back and returns the rest.
func (b *batches) claimOnce(pass *outage.Pass, first *claim, part []*member) (r *batchRun, rest []*member, err error) {
	c, s := b.consumer, b.consumer.store
	batch := part[0].batch
	reg, err := c.register(batch.ctx)
	if err != nil {
		return nil, nil, err
	}
	leave, err := first.slot(batch.ctx, pass)
	if err != nil {
		return nil, nil, err
	}
	leave = sync.OnceFunc(leave)
	span, began := newSpanWith(batch.ctx, part[0].delivery.ctx, c.config.Timeout, b.patience()), time.Now()
	var tx *owned.Tx
	defer func() {
		if r != nil {
			return
		}
		if tx != nil {
			_ = tx.Rollback() // if this fails, the server rolls back when the connection ends
		}
		span.end()
		if err != nil && span.late() {
			err = s.unlessSilent(batch.ctx, err)
		}
		leave()
	}()
	if tx, err = s.db.Begin(span.tx); err != nil {
		return nil, nil, fmt.Errorf("begin: %w", err)
	}
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	var fresh, released []*member
	for _, m := range part {
		if l := m.delivery.lease; l != nil && l.claimed() {
			released = append(released, m)
		} else {
			fresh = append(fresh, m)
		}
	}
	if open, err := b.retake(span, tx.Tx, reg.ID, token, released); err != nil {
		return nil, nil, err
	} else if !open {
		sayAlone(released)
		return nil, fresh, nil
	}
	all, err := b.insert(span, tx.Tx, reg.ID, token, fresh)
	if err != nil {
		return nil, nil, err
	}
	won, over := part, false
	if !all {
		over = s.dialect.ClaimChanges
		if won, err = b.won(span, tx, reg.ID, token, part); err != nil {
			return nil, nil, err
		}
	}
	rest = won
	if !over {
		if rest, err = b.withoutOld(span, tx.Tx, reg.ID, won); err != nil {
			return nil, nil, err
		}
	}
	for _, m := range part {
		if !slices.Contains(rest, m) {
			m.say(endedAlone, nil)
		}
	}
	if over || len(rest) < len(won) || len(rest) == 0 {
		return nil, rest, nil
	}
	root := ambient.New(tx.Tx, s.db.DB)
	root.Ended = tx.Ended
	r = &batchRun{batches: b, members: won, leave: leave}
	r.whole = &claim{
		delivery: won[0].delivery, visit: &visit{}, id32: reg.ID, batch: r, tx: tx, span: span, ambient: root, began: began,
	}
	root.Owner = r.whole
	r.ctx = handlerContext{Context: ambient.With(withValues(span.handler, won[0].delivery.ctx), root), span: span}
	for _, m := range won {
		c.reread.saw(false)
		m.delivery.token, m.gap = token, nil
		m.claim = &claim{
			delivery: m.delivery, visit: &visit{}, id32: reg.ID, known: reg.Generation, fresh: true,
			tx: tx, span: span, began: began, turn: m.turn, leave: func() {},
		}
		m.claim.ambient = root.For(m.claim, (*cause)(m.delivery))
		ctx := ambient.With(withValues(span.handler, m.delivery.ctx), m.claim.ambient)
		m.claim.handler = handlerContext{Context: ctx, span: span, claim: m.claim}
	}
	return r, nil, nil
}

// withoutOld returns the members whose claims cannot have been deleted: the others are judged by themselves. It reads the
// purge line after their claims, so it sees a purge that freed one of the keys, and only if one of them is old.
func (b *batches) withoutOld(span *span, tx *sqlx.Tx, consumer int32, won []*member) ([]*member, error) {
	old := func(m *member) bool { return m.mayBeOld && !m.made.After(m.delivery.rememberedFrom()) }
	if !slices.ContainsFunc(won, old) {
		return won, nil
	}
	line, err := b.consumer.store.purgeLine(span.tx, tx, consumer)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(won), func(m *member) bool {
		return old(m) && line != 0 && !m.made.After(time.UnixMicro(line))
	}), nil
}

// insert claims the keys of part in sorted order, since two batches that meet would deadlock otherwise. It reports
// whether all were new.
func (b *batches) insert(
	span *span, tx *sqlx.Tx, consumer int32, token int64, part []*member,
) (all bool, err error) {
	if len(part) == 0 {
		return true, nil
	}
	sorted := slices.Clone(part)
	slices.SortFunc(sorted, func(x, y *member) int { return bytes.Compare(x.delivery.id, y.delivery.id) })
	args := make([]any, 0, 4*len(sorted))
	for _, m := range sorted {
		args = append(args, consumer, m.delivery.id, m.delivery.hash, token)
	}
	d, statement := b.consumer.store.dialect, b.inserts[len(part)]
	if statement == "" {
		statement = d.Impatient(dialect.Rows(d.Claim, len(part)))
		b.inserts[len(part)] = statement
	}
	n, err := b.patiently(span, tx, statement, args)
	if err != nil {
		return false, fmt.Errorf("claim %d messages: %w", len(part), err)
	}
	return n == int64(len(part)), nil
}

// retake claims the keys of messages that were held, and reports whether all their claims were open.
func (b *batches) retake(span *span, tx *sqlx.Tx, consumer int32, token int64, part []*member) (open bool, err error) {
	if len(part) == 0 {
		return true, nil
	}
	d := b.consumer.store.dialect
	query, args, err := d.In(d.RetakeClaims, token, consumer, idsOf(part))
	if err != nil {
		return false, err
	}
	n, err := b.patiently(span, tx, d.Impatient(query), args)
	if err != nil {
		return false, fmt.Errorf("claim %d stored messages: %w", len(part), err)
	}
	return n == int64(len(part)), nil
}

// idsOf returns the keys of members.
func idsOf(members []*member) [][]byte {
	ids := make([][]byte, 0, len(members))
	for _, m := range members {
		ids = append(ids, m.delivery.id)
	}
	return ids
}

// patiently runs a statement that may have to wait for other processes, and returns how many rows it changed.
func (b *batches) patiently(span *span, tx *sqlx.Tx, statement string, args []any) (int64, error) {
	patience := b.patience()
	if b.consumer.store.dialect.ClaimChanges {
		patience += batchAnswer
	}
	if !span.wait(patience) {
		return 0, ErrInProgress
	}
	n, err := database.Affected(tx.ExecContext(span.tx, statement, args...))
	if !span.resume() || dialect.Cut(err) { // the wait took too long, which ended the transaction
		return 0, ErrInProgress
	}
	return n, err
}

// won returns the members of part whose claims are new. If the statement has changed the other claims, won rolls
// the transaction back first, and returns the members whose keys nobody has.
func (b *batches) won(span *span, tx *owned.Tx, consumer int32, token int64, part []*member) ([]*member, error) {
	s := b.consumer.store
	query, args, err := s.dialect.In(s.dialect.SelectClaims, consumer, idsOf(part))
	if err != nil {
		return nil, err
	}
	var from sqlx.QueryerContext = tx
	if s.dialect.ClaimChanges {
		if err := tx.Rollback(); err != nil {
			return nil, err
		}
		from = s.db.DB
	}
	var rows []struct {
		ID    []byte `db:"message_id"`
		Token int64  `db:"token"`
	}
	if err := sqlx.SelectContext(span.tx, from, &rows, query, args...); err != nil {
		return nil, fmt.Errorf("look up which messages are new: %w", err)
	}
	tokens := make(map[string]int64, len(rows))
	for _, row := range rows {
		tokens[string(row.ID)] = row.Token
	}
	return slices.DeleteFunc(slices.Clone(part), func(m *member) bool {
		of, claimed := tokens[string(m.delivery.id)]
		return claimed != !s.dialect.ClaimChanges || claimed && of != token
	}), nil
}

// valuedContext is a context with the values of another one, with which it does not end.
type valuedContext struct {
	context.Context //nolint:containedctx // it is one

	values context.Context //nolint:containedctx // only its values are used
}

// withValues returns ctx with the values of another context.
func withValues(ctx, values context.Context) context.Context {
	return valuedContext{ctx, context.WithoutCancel(values)}
}

// Value asks ctx only for what the other context does not know, such as how ctx ends.
func (c valuedContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}
