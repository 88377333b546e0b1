package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// spiller stores early messages that have no place in memory: as many as wait for it, in one transaction.
// It lingers for none.
type spiller struct {
	mu    sync.Mutex
	busy  int // transactions under way
	queue []*spilled
}

const (
	maxSpilling = 4       // transactions at once
	maxTogether = 64      // messages in one …
	maxAtOnce   = 1 << 20 // … and the bytes of their payloads, unless one alone has more
)

// spilled is a message on its way into the table.
type spilled struct {
	cl      *claim
	gate    *gate
	v       versioned
	current int64     // the version of its aggregate
	held    bool      // it is stored; otherwise the delivery goes on by itself
	leads   chan bool // gets true if this delivery is to store what waits, and false once it is done
}

// add reports whether the delivery of one is to store what waits. Otherwise one waits.
func (s *spiller) add(one *spilled) (leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy < maxSpilling {
		s.busy++
		return true
	}
	s.queue = append(s.queue, one)
	return false
}

// with returns own and, before it, messages that wait.
func (s *spiller) with(own *spilled) []*spilled {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, bytes := 0, own.bytes()
	for n < min(maxTogether-1, len(s.queue)) && bytes+s.queue[n].bytes() <= maxAtOnce {
		bytes += s.queue[n].bytes()
		n++
	}
	together := append(slices.Clone(s.queue[:n]), own)
	s.queue = slices.Delete(s.queue, 0, n)
	return together
}

// end ends a transaction: the next delivery leads.
func (s *spiller) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.busy--
		return
	}
	s.queue[0].leads <- true
	s.queue = slices.Delete(s.queue, 0, 1)
}

// spillable returns the gate that would hold the message if it were judged in a transaction of its own, nil if
// that may end otherwise.
func (cl *claim) spillable() *gate {
	c, config, g := cl.consumer, &cl.consumer.config, cl.consumer.gate.Load()
	if g == nil || g.config.OnGap != GapHold || c.store.bellOf(c.name()) == nil || config.OnBegin != nil ||
		cl.replayed || cl.collidedWith != nil || config.Redelivered(cl.msg) {
		return nil
	}
	if made, known := config.MessageTime(cl.msg); known && time.Since(made)+config.ClockSkew >= MinRetention {
		return nil // it may be too old
	}
	return g
}

// spill stores a message that waited in vain, together with others, and reports whether it is held now. If not,
// the delivery goes on by itself, and the gate decides.
func (cl *claim) spill() (held bool) {
	g := cl.spillable()
	if g == nil {
		return false
	}
	own := &spilled{cl: cl, gate: g, v: cl.visit.foreseen[0], leads: make(chan bool, 1)}
	s := &cl.consumer.spiller
	if s.add(own) || <-own.leads {
		cl.consumer.lead(s, own)
	}
	if !own.held {
		return false
	}
	cl.consumer.store.observeGap(cl.delivery, &GapError{Aggregate: own.v.Aggregate, Version: own.v.Number, Current: own.current})
	cl.because = own.why()
	cl.observeHeld()
	return true
}

func (c *claimConsumer) lead(s *spiller, own *spilled) {
	defer s.end()
	c.storeEarly(s.with(own))
}

func (o *spilled) bytes() int { return len(o.cl.msg.Payload) }

func (o *spilled) why() why {
	return why{ReasonGap, fmt.Sprintf("waits for version %d of aggregate %q", o.current+1, o.v.Aggregate)}
}

// storeEarly stores those of all that can be held. The last one is the caller's own.
func (c *claimConsumer) storeEarly(all []*spilled) {
	defer func() {
		for _, o := range all[:len(all)-1] {
			o.leads <- false
		}
	}()
	s := c.store
	ctx, cancel := context.WithTimeout(context.WithoutCancel(all[len(all)-1].cl.ctx), c.config.TwinWait)
	defer cancel()
	leave, err := c.slot(ctx)
	if err != nil {
		return
	}
	defer leave()
	reg, err := c.register(ctx)
	if err != nil {
		return
	}
	some := make([]*spilled, 0, len(all))
	for _, o := range all {
		if turn, free := s.turns.Try(o.cl.memoryKey); free { // no copy is being handled
			defer turn.Fail()
			some = append(some, o)
		}
	}
	var held []*spilled
	err = func() (err error) {
		defer recovered("store early messages", &err) // the delivery that goes on by itself meets the panic again
		return s.db.WriteInTurn(ctx, func(tx *sqlx.Tx) (err error) {
			held, err = c.holdTogether(ctx, tx, reg, some)
			return err
		})
	}()
	if err != nil {
		return // the delivery that goes on by itself meets the error, or finds what was committed
	}
	for _, o := range held {
		o.held = true
	}
}

var errNoneHeld = errors.New("no message can be held together with others")

// holdTogether stores messages as held in tx. It leaves out those whose predecessors were applied or are being
// applied, or for which too many wait.
func (c *claimConsumer) holdTogether(
	ctx context.Context, tx *sqlx.Tx, reg stored.Registration, all []*spilled,
) (held []*spilled, err error) {
	if len(all) == 0 {
		return nil, errNoneHeld
	}
	if err := c.holdClaims(ctx, tx, reg.ID, all); err != nil {
		return nil, err
	}
	rows, err := c.lockAggregates(ctx, tx, reg, all)
	if err != nil {
		return nil, fmt.Errorf("lock aggregates: %w", err)
	}
	waiting, err := c.countHeld(ctx, tx, reg.ID, all[0].gate.config.MaxHeld, rows)
	if err != nil {
		return nil, fmt.Errorf("count the held messages: %w", err)
	}
	var dropped [][]byte
	for _, o := range all {
		row, is := rows[string(o.v.id)]
		if !is || o.v.Number <= row.Version+1 || o.v.Number < row.First || waiting[string(o.v.id)] >= o.gate.config.MaxHeld {
			dropped = append(dropped, o.cl.id)
			continue
		}
		waiting[string(o.v.id)]++
		o.current = row.Version
		held = append(held, o)
	}
	if len(held) == 0 {
		return nil, errNoneHeld
	}
	if len(dropped) > 0 {
		if err := c.execIn(ctx, tx, c.store.dialect.DeleteClaims, reg.ID, dropped); err != nil {
			return nil, fmt.Errorf("give claims up: %w", err)
		}
	}
	return held, c.insertHeld(ctx, tx, reg.ID, held)
}

// holdClaims inserts open claims, in an order that all transactions keep.
func (c *claimConsumer) holdClaims(ctx context.Context, tx *sqlx.Tx, consumer int32, all []*spilled) error {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *spilled) int { return bytes.Compare(a.cl.id, b.cl.id) })
	args := make([]any, 0, 4*len(all))
	for _, o := range sorted {
		args = append(args, consumer, o.cl.id, o.cl.hash, o.cl.token)
	}
	n, err := database.Affected(tx.ExecContext(ctx, dialect.Rows(c.store.dialect.Gate.HoldClaims, len(all)), args...))
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	if n != int64(len(all)) {
		return errNoneHeld // one of them is a copy
	}
	return nil
}

// lockAggregates locks the aggregates that no other transaction has locked.
func (c *claimConsumer) lockAggregates(
	ctx context.Context, tx *sqlx.Tx, reg stored.Registration, all []*spilled,
) (map[string]stored.Aggregate, error) {
	ids := make([][]byte, 0, len(all))
	for _, o := range all {
		ids = append(ids, o.v.id)
	}
	var found []struct {
		ID      []byte `db:"aggregate"`
		Version int64  `db:"version"`
		First   int64  `db:"first_version"`
		HeldTo  int64  `db:"held_to"`
	}
	s := c.store
	query, args, err := s.dialect.In(s.dialect.Gate.LockAggregates, reg.ID, ids)
	if err == nil {
		err = tx.SelectContext(ctx, &found, query, args...)
	}
	rows := make(map[string]stored.Aggregate, len(found))
	for _, row := range found {
		rows[string(row.ID)] = stored.Aggregate{Version: row.Version, First: row.First, HeldTo: row.HeldTo}
		if reg.Generation == s.db.Generation() {
			s.versions.Raise(c.prefix+string(row.ID), row.Version)
		}
	}
	return rows, err
}

// countHeld counts the held messages of the aggregates that may have some.
func (c *claimConsumer) countHeld(
	ctx context.Context, tx *sqlx.Tx, consumer int32, most int, rows map[string]stored.Aggregate,
) (waiting map[string]int, err error) {
	waiting = make(map[string]int)
	var args []any
	n := 0
	for id, row := range rows {
		if row.HeldTo > row.Version {
			args = append(args, consumer, []byte(id), most)
			n++
		}
	}
	if n == 0 {
		return waiting, nil
	}
	var counts []struct {
		ID   []byte `db:"aggregate"`
		Held int    `db:"held"`
	}
	if err := tx.SelectContext(ctx, &counts, dialect.UnionAll(c.store.dialect.Gate.CountEachHeld, n), args...); err != nil {
		return nil, err
	}
	for _, count := range counts {
		waiting[string(count.ID)] = count.Held
	}
	return waiting, nil
}

// insertHeld stores messages whose claims are open and whose aggregates are locked.
func (c *claimConsumer) insertHeld(ctx context.Context, tx *sqlx.Tx, consumer int32, held []*spilled) error {
	s := c.store
	highest := make(map[string]int64)
	for _, o := range held {
		highest[string(o.v.id)] = max(highest[string(o.v.id)], o.v.Number)
	}
	var raise, insert []any
	for id, number := range highest {
		raise = append(raise, consumer, []byte(id), []byte{}, number)
	}
	if _, err := tx.ExecContext(ctx, dialect.Rows(s.dialect.Gate.RaiseEachHeld, len(highest)), raise...); err != nil {
		return fmt.Errorf("record that messages are held: %w", err)
	}
	payloads := make([]storedPayload, 0, len(held))
	ids := make([][]byte, 0, len(held))
	for _, o := range held {
		cl := o.cl
		cl.id32 = consumer
		payload, err := s.sealPayloadIn(ctx, tx, c.config.Name, cl.topic, cl.as.Came.Copy())
		if err != nil {
			return err
		}
		payloads, ids = append(payloads, payload), append(ids, cl.id)
		insert = append(insert, s.messageRow(cl, payload, openMessage{
			status: stored.Held, reason: o.why().text, delay: o.gate.config.HeldFor.Microseconds(), waitsFor: &o.v,
		})...)
	}
	if _, err := tx.ExecContext(ctx, dialect.InsertMany(s.dialect.InsertMessage, len(held)), insert...); err != nil {
		return fmt.Errorf("store %d messages: %w", len(held), err)
	}
	for _, payload := range payloads {
		if err := s.checkIn(ctx, tx, payload); err != nil {
			return err
		}
	}
	if err := c.execIn(ctx, tx, s.dialect.History.InsertFirst, consumer, ids); err != nil {
		return fmt.Errorf("record the history of the messages: %w", err)
	}
	return nil
}

// execIn runs a statement that takes the consumer and a list.
func (c *claimConsumer) execIn(ctx context.Context, tx *sqlx.Tx, statement string, args ...any) error {
	query, args, err := c.store.dialect.In(statement, args...)
	if err == nil {
		_, err = tx.ExecContext(ctx, query, args...)
	}
	return err
}
