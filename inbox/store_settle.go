package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// settler remembers deliveries whose outcome was handed to the router, until the router acks
// them: then the broker has the outcome, and the store can delete its row.
type settler struct {
	mu      sync.Mutex
	waiting []*claim

	settling sync.Mutex // makes a second settle wait until the rows of the first are deleted
}

// most is how many deliveries may wait before one of them settles them all. It does so only if
// nothing runs the background work.
const most = 1024

func (u *settler) watch(cl *claim) {
	cl.watched = time.Now()
	u.mu.Lock()
	u.waiting = append(u.waiting, cl)
	full := len(u.waiting) >= most && len(u.waiting)%most == 0
	u.mu.Unlock()
	if s := cl.consumer.store; full && !s.work.expects.Load() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cl.ctx), afterwards)
		defer cancel()
		if err := s.settle(ctx); err != nil {
			s.log.Error("inbox: what was published could not be settled; tried again", err, nil)
		}
	}
}

// acked removes from u and returns the deliveries that were acked. It forgets those that were
// nacked, whose redelivery finds the outcome, and counts as dropped those without an answer for
// longer than patience.
func (u *settler) acked(patience time.Duration) (acked []*claim, dropped int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	still := u.waiting[:0]
	for _, cl := range u.waiting {
		select {
		case <-cl.msg.Acked():
			acked = append(acked, cl)
			continue
		default:
		}
		select {
		case <-cl.msg.Nacked():
			continue
		default:
		}
		if time.Since(cl.watched) > patience {
			dropped++
			continue
		}
		still = append(still, cl)
	}
	clear(u.waiting[len(still):])
	u.waiting = still
	return acked, dropped
}

func (u *settler) putBack(claims []*claim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = append(u.waiting, claims...)
}

var errNoAnswer = errors.New("a middleware outside hands on a copy of the message")

// settle deletes the outcomes of deliveries that were acked.
func (s *Store) settle(ctx context.Context) error {
	const batch = 500
	s.unsettled.settling.Lock()
	defer s.unsettled.settling.Unlock()
	acked, dropped := s.unsettled.acked(s.config.RedispatchAfter)
	if dropped > 0 {
		s.log.Error("inbox: messages were handled and then neither acked nor nacked, so what they produced is not "+
			"known to be published", errNoAnswer, watermill.LogFields{"count": dropped})
	}
	defer func() { s.unsettled.putBack(acked) }() // those left over by an error
	for len(acked) > 0 {
		now := acked[:min(batch, len(acked))]
		byConsumer := make(map[int32][][]byte)
		for _, cl := range now {
			byConsumer[cl.id32] = append(byConsumer[cl.id32], cl.id)
		}
		if err := s.deleteOutcomes(ctx, byConsumer); err != nil {
			return err
		}
		acked = acked[len(now):]
		for _, cl := range now {
			cl.remember()
			if s.observers.wanted(KindSettled) {
				s.survive(cl.ctx, func(ctx context.Context) { s.tellApart(ctx, KindSettled, cl.event("acked")) }) //nolint:contextcheck // of the delivery
			}
		}
		if s.debug.Load() {
			s.log.Debug("inbox: outcomes settled", watermill.LogFields{"count": len(now)})
		}
	}
	return nil
}

// deleteOutcomes deletes the outcomes of these keys of each consumer.
func (s *Store) deleteOutcomes(ctx context.Context, byConsumer map[int32][][]byte) error {
	return s.db.Write(ctx, func(tx *sqlx.Tx) error {
		for consumer, ids := range byConsumer {
			query, args, err := s.dialect.In(s.dialect.DeleteOutcomes, consumer, ids)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, query, args...); err != nil {
				return fmt.Errorf("delete outcomes: %w", err)
			}
		}
		return nil
	})
}

func unsettledFields(o stored.Unsettled) watermill.LogFields {
	return watermill.LogFields{
		"consumer": o.Consumer, "epoch": o.Epoch, "message_id": o.MessageID, "topic": o.Topic,
		"count": len(o.Messages), "age": o.Age.String(),
	}
}

type outcomeRow struct {
	Consumer  int32  `db:"consumer"`
	Name      []byte `db:"name"`
	Epoch     int    `db:"epoch"`
	ID        []byte `db:"message_id"`
	Topic     []byte `db:"topic"`
	CreatedAt int64  `db:"created_at"`
	Age       int64  `db:"age"`
}

func (o *outcomeRow) unsettled() stored.Unsettled {
	return stored.Unsettled{
		Consumer: string(o.Name), Epoch: o.Epoch, MessageID: keycode.String(o.ID), Topic: string(o.Topic),
		StoredAt: time.UnixMicro(o.CreatedAt).UTC(), Age: time.Duration(o.Age) * time.Microsecond,
		ConsumerID: o.Consumer, ID: o.ID,
	}
}

// mostOutcomes is how many outcomes are listed at once.
const mostOutcomes = 1000

// listUnsettled lists the oldest outcomes that f selects, at most limit of them, without the offset oldest. It leaves out
// their messages: those of a page may not fit into memory.
func (s *Store) listUnsettled(ctx context.Context, f stored.UnsettledFilter, offset, limit int) ([]stored.Unsettled, error) {
	var name, epoch any
	if f.Consumer != "" {
		name = []byte(f.Consumer)
	}
	if f.Epoch != nil {
		epoch = *f.Epoch
	}
	var rows []outcomeRow
	err := sqlx.SelectContext(ctx, s.db.Reader(ctx), &rows, s.dialect.SelectOutcomes,
		[]byte(s.config.Namespace), name, name, epoch, epoch, f.Age.Microseconds(), limit, offset)
	if err != nil {
		return nil, fmt.Errorf("inbox: list outcomes: %w", database.Explain(err))
	}
	listed := make([]stored.Unsettled, 0, len(rows))
	for _, row := range rows {
		listed = append(listed, row.unsettled())
	}
	return listed, nil
}

// keptOutcome returns the messages of an outcome as they are stored, and [ErrNotFound] if it was settled since it was listed.
func (s *Store) keptOutcome(ctx context.Context, o stored.Unsettled) (kept []byte, err error) {
	err = sqlx.GetContext(ctx, s.db.Reader(ctx), &kept, s.dialect.SelectOutcome, o.ConsumerID, o.ID)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, unread(o, database.Explain(err))
	}
	return kept, nil
}

func (s *Store) openUnsettled(ctx context.Context, o stored.Unsettled, kept []byte) (stored.Unsettled, error) {
	var err error
	if o.Messages, err = s.openOutcome(ctx, o.Consumer, o.Topic, kept); err != nil {
		return o, unread(o, err)
	}
	return o, nil
}

func unread(o stored.Unsettled, why error) error {
	return fmt.Errorf("inbox: outcome of consumer %q, message %q: %w", o.Consumer, o.MessageID, why)
}

// eachUnsettled reads the oldest outcomes that f selects one by one, and calls do with each that can be published, at most
// limit of them, until do returns an error. do says whether its outcome stays. The error names those that cannot be read.
func (s *Store) eachUnsettled(
	ctx context.Context, f stored.UnsettledFilter, limit int, do func(stored.Unsettled) (stays bool, err error),
) error {
	var problems []error
	for stay := 0; limit > 0; {
		size := min(limit, mostOutcomes)
		listed, err := s.listUnsettled(ctx, f, stay, size)
		if err != nil {
			return errors.Join(append(problems, err)...)
		}
		for _, o := range listed {
			kept, err := s.keptOutcome(ctx, o)
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return errors.Join(append(problems, err)...)
			}
			stays := true
			if o, err = s.openUnsettled(ctx, o, kept); err != nil {
				problems = append(problems, err)
			} else if stays, err = do(o); err != nil {
				return errors.Join(append(problems, err)...)
			} else {
				limit--
			}
			if stays {
				stay++
			}
		}
		if len(listed) < size {
			break
		}
	}
	return errors.Join(problems...)
}

// Redispatch publishes the outcomes stored longer than age ago, with the same UUIDs, bytes and
// metadata, and settles them. It is for messages that the broker never redelivered: choose an age
// above any redelivery delay, else the broker gets the outcome twice. Redispatch returns how many it
// sent. One call looks at the thousand oldest. After ten failures in a row of one topic it leaves the
// others of that topic, after fifty in a row of any it takes the broker to be out, and ends, as it does
// when ctx ends. The next call skips those that could not be sent, and once a call reaches the last
// outcome, the call after it begins with the oldest again.
func (s *Store) Redispatch(ctx context.Context, to message.Publisher, age time.Duration) (sent int, err error) {
	skip := int(s.stayed.Load())
	listed, err := s.listUnsettled(ctx, stored.UnsettledFilter{Age: age}, skip, mostOutcomes)
	if err != nil {
		return 0, err
	}
	var failures []error
	var failing topics
	settled := 0 // sent, or by somebody else since they were listed
	for i, o := range listed {
		if failing.leave(o.Topic) {
			continue
		}
		if ctx.Err() != nil || failing.all() { // the next call goes on here
			s.stayed.Store(int64(skip + i - settled))
			return sent, errors.Join(append(failures, failing.left(), ctx.Err())...)
		}
		kept, err := s.keptOutcome(ctx, o)
		if errors.Is(err, ErrNotFound) {
			settled++
			continue
		}
		if err != nil {
			return sent, errors.Join(append(failures, err)...)
		}
		o, err := s.openUnsettled(ctx, o, kept)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if len(o.Messages) > 0 { // else they are erased
			err = s.counted(publishTo(to, o.Topic, o.Messages))
			failing.tried(o.Topic, err)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("inbox: redispatch consumer %q, message %q to %q: %w",
				o.Consumer, o.MessageID, o.Topic, err))
			continue
		}
		if err := s.deleteOutcomes(ctx, map[int32][][]byte{o.ConsumerID: {o.ID}}); err != nil {
			return sent, errors.Join(append(failures, fmt.Errorf("inbox: redispatch: %w", database.Explain(err)))...)
		}
		sent, settled = sent+1, settled+1
		s.log.Info("inbox: outcome redispatched", unsettledFields(o))
	}
	if skip += len(listed) - settled; len(listed) < mostOutcomes {
		skip = 0
	}
	s.stayed.Store(int64(skip))
	return sent, errors.Join(append(failures, failing.left())...)
}

func publishTo(to message.Publisher, topic string, msgs []*message.Message) (err error) {
	defer recovered("Publish", &err)
	return sound(to.Publish(topic, msgs...))
}

// redispatch publishes, or at least reports, old outcomes whose messages were not redelivered.
func (s *Store) redispatch(ctx context.Context) {
	if err := s.settle(ctx); err != nil { // settle first, or outcomes of acked messages would be published again
		if ctx.Err() == nil {
			s.log.Error("inbox: what was published could not be settled; tried again", database.Explain(err), nil)
		}
		return
	}
	if s.config.Redispatch != nil {
		if _, err := s.Redispatch(ctx, s.config.Redispatch, s.config.RedispatchAfter); err != nil && ctx.Err() == nil {
			s.log.Error("inbox: outcomes could not be redispatched; tried again", err, nil)
		}
		return
	}
	s.reportUnsettled(ctx)
}

// reportUnsettled logs the oldest outcome. It opens no payload: whatever cannot be read, the outcome
// may be missing.
func (s *Store) reportUnsettled(ctx context.Context) {
	old, err := s.listUnsettled(ctx, stored.UnsettledFilter{Age: s.config.RedispatchAfter}, 0, 1)
	var kept []byte
	if len(old) > 0 {
		kept, err = s.keptOutcome(ctx, old[0])
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotFound) {
		s.log.Error("inbox: outcomes that may not be published could not be looked for; tried again", err, nil)
	}
	if err != nil || len(old) == 0 {
		return
	}
	old[0].Messages, err = outlineOutcome(kept)
	fields := unsettledFields(old[0])
	if err != nil { // it is of a newer release
		delete(fields, "count")
	}
	s.log.Error("inbox: a message was handled, but what it produced may not be published", errUnsettled, fields)
}

var errUnsettled = errors.New("give Config.Redispatch a publisher, or call Store.Redispatch")
