package inbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// mostRows bounds the messages in one INSERT, whose arguments a database limits.
const mostRows = 1000

// countEach is how often a batch counts what its aggregates hold although their versions leave room. They hold more
// only if several messages have one version.
const countEach = 16

// hold stores the early members of the runs until their predecessors are applied, as [claim.hold] and [claim.store]
// do for one message. The aggregates are locked, so no predecessor can be applied meanwhile without releasing them.
// It returns those of which too many wait already.
func (r *batchRun) hold(runs []*run) (aside []*member, err error) {
	var early []*member
	var crowded [][]byte
	s, whole, most := r.consumer.store, r.whole, r.gate.config.MaxHeld
	for _, one := range runs {
		if n := len(one.early); n > 0 {
			early = append(early, one.early...)
			if r.holdings%countEach == 0 || max(one.row.HeldTo, one.early[n-1].version.Number)-max(one.last(), 0) > int64(most) {
				crowded = append(crowded, one.id)
			}
		}
	}
	if len(early) == 0 {
		return nil, nil
	}
	r.holdings++
	var waiting map[string]int
	if len(crowded) > 0 {
		if waiting, err = s.countHeld(whole.span.tx, whole.tx, whole.id32, most, crowded...); err != nil {
			return nil, err
		}
	}
	for _, one := range runs {
		for i, m := range one.early {
			if waiting[string(one.id)]+i >= most {
				aside = append(aside, m)
			}
			m.gap = &GapError{Aggregate: m.version.Aggregate, Version: m.version.Number, Current: one.last()}
			m.claim.verdict, m.claim.waitsFor = toHold, m.version
			m.claim.because = why{ReasonGap, fmt.Sprintf("waits for version %d of aggregate %q", one.last()+1, m.version.Aggregate)}
		}
	}
	if len(aside) > 0 {
		return aside, nil
	}
	for some := range slices.Chunk(early, mostRows) {
		if err := r.insertHeld(some); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// mostSelects bounds the SELECTs in one statement. SQLite takes 500.
const mostSelects = 100

// release is [claim.release] for all members.
func (r *batchRun) release(ctx context.Context, tx *sqlx.Tx) error {
	by := map[string]*claim{}
	var args [][]any
	for _, m := range r.members {
		for _, a := range m.claim.advances {
			if a.heldTo >= a.Number {
				by[string(a.id)] = m.claim
				args = append(args, []any{m.claim.id32, a.id, a.releases()})
			}
		}
	}
	s := r.consumer.store
	for some := range slices.Chunk(args, mostSelects) {
		var rows []struct {
			ID        int64  `db:"id"`
			Aggregate []byte `db:"aggregate"`
		}
		query := dialect.ForEach(s.dialect.Gate.SelectReleased, len(some))
		if err := tx.SelectContext(ctx, &rows, query, slices.Concat(some...)...); err != nil {
			return fmt.Errorf("look for the messages that wait for %d aggregates: %w", len(some), err)
		}
		var ids []int64
		for _, row := range rows {
			ids = append(ids, row.ID)
			by[string(row.Aggregate)].released++
		}
		for some := range slices.Chunk(ids, mostRows) {
			query, args, err := s.dialect.In(s.dialect.Gate.ReleaseAll, noteText("its predecessor was applied in a batch"), some)
			if err == nil {
				_, err = tx.ExecContext(ctx, query, args...)
			}
			if err != nil {
				return fmt.Errorf("release %d messages: %w", len(some), err)
			}
		}
	}
	return nil
}

// insertHeld stores messages that wait, with open claims.
func (r *batchRun) insertHeld(early []*member) error {
	s, whole := r.consumer.store, r.whole
	ctx, tx := whole.span.tx, whole.tx.Tx
	var args []any
	ids := idsOf(early)
	var payloads []storedPayload
	for _, m := range early {
		row, err := s.rowOf(ctx, tx, m.claim, openMessage{
			status: stored.Held, reason: m.claim.because.text,
			delay: r.gate.config.HeldFor.Microseconds(), waitsFor: &m.version,
		})
		if err != nil {
			return err
		}
		args, payloads = append(args, row.args...), append(payloads, row.payload)
	}
	if err := s.reopen(ctx, tx, whole.id32, whole.token, ids...); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, dialect.InsertMany(s.dialect.InsertMessage, len(early)), args...); err != nil {
		return fmt.Errorf("hold %d messages: %w", len(early), err)
	}
	for _, payload := range payloads {
		if err := s.checkIn(ctx, tx, payload); err != nil {
			return err
		}
	}
	return s.noteAll(ctx, tx, whole.id32, ids, putAside, nil)
}
