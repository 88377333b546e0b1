package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/internal/stored"
)

// hold decides to store the message until its predecessor is applied, to park it if too many wait
// already, or to send it back if no queue would deliver it.
func (cl *claim) hold(g *gate, v versioned, reason string) error {
	s := cl.consumer.store
	if s.bellOf(cl.consumer.name()) == nil {
		delay, _ := cl.consumer.gaps.fail(cl.memoryKey, stored.Never)
		cl.sendBack(delay, ErrNoQueue)
		return nil
	}
	counts, err := s.countHeld(cl.span.tx, cl.tx, cl.id32, g.config.MaxHeld, v.id)
	if err != nil {
		return err
	}
	waiting := counts[string(v.id)]
	if waiting >= g.config.MaxHeld {
		cl.refuse(v, ReasonTooManyHeld, fmt.Sprintf("%s, for which %d messages wait already, as many as MaxHeld allows", reason, waiting))
		return nil
	}
	cl.verdict, cl.waitsFor, cl.because, cl.heldFor = toHold, v, why{ReasonGap, reason}, g.config.HeldFor
	return nil
}

// countHeld returns how many messages each aggregate holds, up to a limit.
func (s *Store) countHeld(
	ctx context.Context, db sqlx.QueryerContext, consumer int32, most int, aggregates ...[]byte,
) (map[string]int, error) {
	counts := make(map[string]int, len(aggregates))
	for some := range slices.Chunk(aggregates, mostSelects) {
		var args []any
		for _, id := range some {
			args = append(args, consumer, id, most)
		}
		var rows []struct {
			Aggregate []byte `db:"aggregate"`
			Held      int    `db:"held"`
		}
		err := sqlx.SelectContext(ctx, db, &rows, dialect.UnionAll(s.dialect.Gate.CountHeld, len(some)), args...)
		if err != nil {
			return nil, fmt.Errorf("count the held messages: %w", err)
		}
		for _, row := range rows {
			counts[string(row.Aggregate)] = row.Held
		}
	}
	return counts, nil
}

// setAside stores a message that the gate did not let through, or completes a stale one that is
// stored.
func (cl *claim) setAside() error {
	if cl.verdict == stale && !cl.openRow {
		return cl.tx.Rollback() // it needs no claim: a copy will be stale too
	}
	var err error
	if cl.verdict == stale {
		err = cl.sealAndWrite(cl.span.tx, nil, nil)
	} else {
		err = cl.store()
	}
	if err != nil {
		return err
	}
	if err := cl.tx.Commit(); err != nil {
		cl.notCommitted(err)
		return database.Explain(cl.consumer.store.db.Noticed(fmt.Errorf("commit: %w", err)))
	}
	return nil
}

// store stores the message whole, for the gate or for an operator, with an open claim. The
// aggregate is locked, so no predecessor can be applied meanwhile without releasing the message.
func (cl *claim) store() error {
	s, ctx := cl.consumer.store, cl.span.tx
	open := openMessage{status: stored.Parked, reason: cl.because.text, delay: dialect.NeverDue, waitsFor: &cl.waitsFor}
	if cl.waitsFor.id == nil {
		open.status, open.waitsFor = stored.FailedTerminal, nil
	}
	if cl.verdict == toHold {
		open.status, open.delay = stored.Held, cl.heldFor.Microseconds()
	}
	var row newRow
	err := cl.verifyAfter(nil, func() (err error) {
		if !cl.openRow {
			row, err = s.rowOf(ctx, cl.tx.Tx, cl, open)
		}
		return err
	})
	if err != nil {
		return err
	}
	if cl.verdict == toHold {
		_, err := cl.tx.ExecContext(ctx, s.dialect.Gate.RaiseHeld, cl.waitsFor.Number, cl.id32, cl.waitsFor.id)
		if err != nil {
			return fmt.Errorf("record that a message is held: %w", err)
		}
	}
	if err := s.reopen(ctx, cl.tx.Tx, cl.id32, cl.token, cl.id); err != nil {
		return err
	}
	if !cl.openRow {
		return cl.storeAside(ctx, cl.tx.Tx, row)
	}
	status, lease := cl.openAs, int64(0)
	if cl.lease != nil {
		status, lease = stored.InProgress, cl.lease.token
	}
	// What is parked leaves the order of its queue: the gate refused it, nothing behind it needs it, and its predecessor
	// may stand there.
	n, err := database.Affected(cl.tx.ExecContext(ctx, s.dialect.Gate.HoldMessage, open.status, noteText(open.reason),
		cl.waitsFor.id, cl.waitsFor.Number, open.status == stored.Parked, open.delay, cl.id32, cl.id, status, lease))
	if err == nil && n != 1 {
		err = ErrLost
	}
	if err == nil {
		err = s.note(ctx, cl.tx.Tx, cl.id32, cl.id, putAside, nil)
	}
	if err != nil {
		return fmt.Errorf("put the message aside: %w", err)
	}
	return nil
}

// release releases, in the transaction that advances an aggregate, the messages held for it.
func (cl *claim) release(ctx context.Context, tx *sqlx.Tx) error {
	s := cl.consumer.store
	for _, a := range cl.advances {
		if !cl.mayRelease(a) {
			continue
		}
		n, err := s.releaseHeld(ctx, tx, cl.id32, a.versioned, a.releases())
		if err != nil {
			return fmt.Errorf("release the messages that wait for %s: %w", a.Version, err)
		}
		cl.released += n
	}
	return nil
}

// mayRelease reports whether messages may be held for a. A version that jumped does not tell from which one, so that what
// this process saw of the aggregate decides.
func (cl *claim) mayRelease(a advance) bool {
	if !a.jumps {
		return a.heldTo > a.from
	}
	seen, known := cl.consumer.store.versions.Get(cl.consumer.prefix + string(a.id))
	return a.heldTo > 0 && (!known || a.heldTo > seen)
}

// releases returns the last version that a releases.
func (a advance) releases() int64 {
	if a.jumps {
		return math.MaxInt64
	}
	return following(a.Number)
}

// releaseHeld makes due the messages up to version last, since the aggregate came to v.
func (s *Store) releaseHeld(ctx context.Context, tx *sqlx.Tx, consumer int32, v versioned, last int64) (int64, error) {
	return database.Affected(tx.ExecContext(ctx, s.dialect.Gate.ReleaseHeld,
		noteText("released by "+v.String()), consumer, v.id, last))
}

// following returns the version after v.
func following(v int64) int64 { return min(v, math.MaxInt64-1) + 1 }

// rememberVersions notes the new versions, after the commit, while the delivery has the turns of the aggregates.
func (cl *claim) rememberVersions() {
	s := cl.consumer.store
	if cl.known != s.db.Generation() {
		return
	}
	for _, a := range cl.advances {
		aggregate := cl.consumer.prefix + string(a.id)
		if _, known := s.reached.Get(aggregate); !known {
			s.reached.Add(aggregate, a.Number)
		}
		s.versions.Raise(aggregate, a.Number)
	}
}

// advanced tells, after the commit, the messages and the queue that wait for the new versions.
func (cl *claim) advanced() {
	s := cl.consumer.store
	for _, a := range cl.advances {
		cl.consumer.early.tell(cl.consumer.prefix+string(a.id), a.Number)
	}
	if len(cl.advances) > 0 {
		cl.consumer.gaps.passed(cl.memoryKey)
	}
	if cl.released > 0 {
		s.wakeQueue(cl.consumer.name())
		cl.observeReleased()
	}
}

// expire parks the messages of all consumers that were held too long.
func (j *janitor) expire(ctx context.Context) {
	s := j.store
	var consumers []stored.Consumer
	err := s.db.SelectContext(ctx, &consumers, s.dialect.SelectConsumers)
	for _, c := range consumers {
		if string(c.Namespace) == s.config.Namespace {
			err = errors.Join(err, j.expireHeld(ctx, c))
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("inbox: messages that were held too long could not be parked; tried again", database.Explain(s.db.Noticed(err)), nil)
	}
}

// expireHeld parks messages of a consumer that were held too long. It goes on where the last look
// ended, so a look reads only a part of what a consumer holds, and every message has its turn.
func (j *janitor) expireHeld(ctx context.Context, c stored.Consumer) error {
	const page, pages = 5000, 4
	for range pages {
		var ages []struct {
			ID      int64 `db:"id"`
			Expired bool  `db:"expired"`
		}
		err := j.store.db.SelectContext(ctx, &ages, j.store.dialect.Gate.SelectHeldAges, c.ID, j.held[c.ID], page)
		if err != nil {
			return fmt.Errorf("find messages that were held too long: %w", err)
		}
		var expired []int64
		for _, age := range ages {
			if age.Expired {
				expired = append(expired, age.ID)
			}
		}
		if len(ages) < page {
			delete(j.held, c.ID)
		} else {
			j.held[c.ID] = ages[len(ages)-1].ID // even if this page fails, the next ones have their turn
		}
		if err := j.expirePage(ctx, c, expired); err != nil || len(ages) < page {
			return err
		}
	}
	return nil
}

// expirePage parks messages, many in one transaction.
func (j *janitor) expirePage(ctx context.Context, c stored.Consumer, ids []int64) error {
	const read, together = 500, 100
	s := j.store
	var rows []stored.Message
	for some := range slices.Chunk(ids, read) {
		var found []stored.Message
		if err := s.selectIn(ctx, s.db, &found, s.dialect.Gate.SelectExpired, some); err != nil {
			return fmt.Errorf("read messages that were held too long: %w", err)
		}
		rows = append(rows, found...)
	}
	slices.SortStableFunc(rows, func(a, b stored.Message) int { return bytes.Compare(a.Aggregate, b.Aggregate) })
	for batch := range slices.Chunk(rows, together) {
		var parked []stored.Message
		err := s.db.Write(ctx, func(tx *sqlx.Tx) (err error) {
			parked, err = s.expireTogether(ctx, tx, c, batch)
			return err
		})
		if err != nil {
			return fmt.Errorf("park messages that were held too long: %w", err)
		}
		for _, row := range parked {
			s.observeExpired(ctx, c, row, heldTooLong(&row))
		}
	}
	return nil
}

// expireTogether parks those of rows that are still held. It waits for no lock, because it has
// locked the other rows meanwhile: an aggregate or a message that another transaction has is left
// to the next look.
func (s *Store) expireTogether(
	ctx context.Context, tx *sqlx.Tx, c stored.Consumer, rows []stored.Message,
) (parked []stored.Message, err error) {
	var free []stored.Message
	locked := false
	for i, row := range rows { // every transaction locks aggregates before messages
		if i == 0 || !bytes.Equal(row.Aggregate, rows[i-1].Aggregate) {
			if locked, err = s.lockFree(ctx, tx, c, row.Aggregate); err != nil {
				return nil, err
			}
		}
		if locked {
			free = append(free, row)
		}
	}
	if len(free) == 0 {
		return nil, nil
	}
	ids := make([]int64, 0, len(free))
	for _, row := range free {
		ids = append(ids, row.ID)
	}
	var held []int64
	if err := s.selectIn(ctx, tx, &held, s.dialect.Gate.LockHeld, ids); err != nil {
		return nil, err
	}
	for _, row := range free {
		if !slices.Contains(held, row.ID) {
			continue
		}
		n, err := database.Affected(tx.ExecContext(ctx, s.dialect.Gate.ExpireHeld,
			[]byte(heldTooLong(&row)), dialect.NeverDue, c.ID, row.MessageID))
		if err == nil && n == 1 {
			parked = append(parked, row)
			err = s.note(ctx, tx, c.ID, row.MessageID, putAside, nil)
		}
		if err != nil {
			return nil, err
		}
	}
	return parked, nil
}

// selectIn runs a SELECT whose only argument is a list.
func (s *Store) selectIn(ctx context.Context, db sqlx.QueryerContext, into any, statement string, list []int64) error {
	query, args, err := s.dialect.In(statement, list)
	if err != nil {
		return err
	}
	return sqlx.SelectContext(ctx, db, into, query, args...)
}

// lockFree locks an aggregate unless another transaction has it. One without a row needs no lock.
func (s *Store) lockFree(ctx context.Context, tx *sqlx.Tx, c stored.Consumer, aggregate []byte) (locked bool, err error) {
	var row stored.Aggregate
	for _, query := range []string{s.dialect.Gate.LockAggregate, s.dialect.Gate.SelectAggregate} {
		err = row.Scan(tx.QueryRowContext(ctx, query, c.ID, aggregate))
		if !errors.Is(err, sql.ErrNoRows) {
			return query == s.dialect.Gate.LockAggregate && err == nil, err
		}
	}
	return true, nil
}

func heldTooLong(row *stored.Message) string {
	return fmt.Sprintf("held too long: its predecessor, version %d of aggregate %q, was not applied in time",
		row.Version.Int64-1, keycode.String(row.Aggregate))
}

// observeExpired reports a message that was parked without a delivery.
func (s *Store) observeExpired(ctx context.Context, c stored.Consumer, row stored.Message, text string) {
	metadata, err := msgcode.DecodeMetadata(row.Metadata)
	if err != nil {
		metadata = nil // it cannot be read
	}
	s.observeParked(ctx, Event{
		Consumer: string(c.Name), Epoch: c.Epoch, MessageID: keycode.String(row.MessageID), UUID: string(row.UUID),
		Topic: string(row.Topic), Type: string(row.EventType), Reason: ReasonHeldTooLong, Err: errors.New(text), Metadata: metadata,
	})
}

// heldLook is how often the janitor looks for messages that were held too long.
const heldLook = 10 * time.Second
