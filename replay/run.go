package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
)

// Run sends the messages of r, and returns when it is done, ctx has ended or something failed.
// Called again with the same request, by any process, it continues where it was; when the replay is
// done it does nothing. Of two calls at the same time, one ends with [ErrTaken];
// with [Publisher] it may have sent a batch that the other has sent.
//
// When ctx ends, Run first finishes the batch that it has begun. A batch has a minute, and a second for
// each of its messages: if it takes longer, Run returns an error, and a smaller PerSecond makes it smaller.
//
// Messages that the source gets after the replay began are not part of it.
func (p *Replayer) Run(ctx context.Context, r Request) (Status, error) {
	r.setDefaults()
	if err := r.validate(); err != nil {
		return Status{}, explain(r.Name, err)
	}
	s, err := p.begin(ctx, &r)
	if err == nil && s.Spec.Source == subscriberKind {
		err = errors.New("it empties a dead-letter topic or queue: continue it with Replayer.Drain")
	}
	if err == nil && s.State == Running {
		p.log.Info("replay: started or continued", fields(s))
		err = p.send(ctx, &r, &s)
		p.log.Info("replay: stopped", fields(s))
	}
	return s, explain(r.Name, err)
}

func fields(s Status) watermill.LogFields {
	return watermill.LogFields{"replay": s.Name, "state": string(s.State), "count": s.Sent, "skipped": s.Skipped}
}

// begin returns the replay with the name of r, and creates it if there is none.
func (p *Replayer) begin(ctx context.Context, r *Request) (Status, error) {
	s, err := p.status(ctx, p.db, r.Name)
	if errors.Is(err, ErrNotFound) {
		if err = p.insert(ctx, r); err == nil {
			s, err = p.status(ctx, p.db, r.Name)
		}
	}
	if r.Filter.Epoch == nil { // insert chose it when the replay began
		r.Filter.Epoch = s.Spec.Filter.Epoch
	}
	switch {
	case err != nil:
		return s, err
	case s.State == Cancelled:
		return s, ErrCancelled
	}
	stored, err := json.Marshal(s.Spec)
	if err != nil {
		return Status{}, err
	}
	asked, err := json.Marshal(r.spec())
	if err == nil && !bytes.Equal(stored, asked) {
		err = ErrOther
	}
	if err != nil {
		return Status{}, err
	}
	return s, nil
}

func (p *Replayer) insert(ctx context.Context, asked *Request) (err error) {
	begun := *asked
	r := &begun
	if r.Filter, err = r.From.pinned(ctx, r.Filter); err != nil {
		return err
	}
	plan, err := p.plan(ctx, r)
	if err != nil {
		return err
	}
	if len(plan.SideEffects) > 0 {
		return fmt.Errorf("%w: %s", ErrSideEffects, strings.Join(plan.SideEffects, ", "))
	}
	spec, err := json.Marshal(r.spec())
	if err != nil {
		return err
	}
	return p.db.WriteFound(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, p.db.Dialect.Replays.InsertReplay, p.namespace, []byte(r.Name), []byte(r.From.kind()),
			spec, plan.lastID, []byte(r.By.Name), []byte(r.By.Reason))
		if err != nil {
			return err
		}
		return p.audit(ctx, tx, r.By, "replay", r.Name, string(spec))
	})
}

// send runs the replay until it is done.
func (p *Replayer) send(ctx context.Context, r *Request, s *Status) error {
	source := newPages(r, s.LastID)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		items, last, err := source.after(ctx, s.Reached, min(atOnce, r.PerSecond))
		if err != nil {
			return err
		}
		began, sent := time.Now(), 0
		if len(items) > 0 {
			if sent, err = p.batch(ctx, r, s, items); err != nil {
				return err
			}
		}
		if last {
			return p.finish(ctx, r, s)
		}
		r.tell(*s)
		if err := wait(ctx, began, sent, r.PerSecond); err != nil {
			return err
		}
	}
}

// batch sends items and advances the replay, in one transaction if the target writes to the
// database.
func (p *Replayer) batch(ctx context.Context, r *Request, s *Status, items []item) (sent int, err error) {
	next := *s
	next.Reached = items[len(items)-1].id
	var fit []item
	for _, i := range r.named(items) {
		if i.unfit != nil && !i.gone {
			return 0, fmt.Errorf("message %q: %w", i.msg.UUID, i.unfit)
		}
		if i.unfit != nil {
			p.log.Error("replay: skipping a message that cannot be read", i.unfit,
				fields(*s).Add(watermill.LogFields{"message_uuid": i.msg.UUID, "topic": i.topic}))
			next.Skipped++
			continue
		}
		mark(i.msg, r.Name)
		fit = append(fit, i)
	}
	next.Sent += len(fit)
	if err := p.sendFirst(ctx, s, r.To, fit); err != nil {
		return 0, err
	}
	ctx, cancel := batchTime(ctx, fit)
	defer cancel()
	err = p.db.WriteFound(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, p.db.Dialect.Replays.AdvanceReplay,
			next.Reached, next.Sent-s.Sent, next.Skipped-s.Skipped, s.row, s.Reached, s.Sent)
		if err := one(result, err); err != nil || !r.To.inTx() {
			return err
		}
		return r.To.put(ctx, fit, r.allowed())
	})
	if errors.Is(err, ErrTaken) {
		return 0, p.whyTaken(ctx, s)
	}
	if err == nil {
		*s = next
		s.MovedAt = time.Now().UTC()
	}
	return len(fit), tooLong(ctx, err)
}

// sendFirst puts items into a target outside of the transaction. The transaction that then advances the replay has
// a time of its own: what was sent late is not sent again.
func (p *Replayer) sendFirst(ctx context.Context, s *Status, to Target, items []item) error {
	if to.inTx() {
		return nil
	}
	ctx, cancel := batchTime(ctx, items)
	defer cancel()
	err := p.unchanged(ctx, s)
	if err == nil {
		err = to.put(ctx, items, nil)
	}
	return tooLong(ctx, err)
}

// batchTime returns a context for a batch, which is finished once begun.
func batchTime(ctx context.Context, items []item) (context.Context, context.CancelFunc) {
	most := time.Minute + time.Duration(len(items))*time.Second
	late := fmt.Errorf("a batch of %d messages took longer than %v: lower PerSecond (--rate), and batches have fewer messages", len(items), most)
	if len(items) == 1 {
		late = fmt.Errorf("message %q took longer than %v: see what the target or the database waits for", items[0].msg.UUID, most)
	}
	return context.WithTimeoutCause(context.WithoutCancel(ctx), most, late)
}

// tooLong says of an error that came when the time of a batch was over what helps.
func tooLong(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), err)
}

// allowed returns the operator who allows the target's consumer to handle what it refuses, or nil.
func (r *Request) allowed() *admin.Operator {
	if only := r.To.only(); only == nil || !slices.Contains(r.IntoSideEffects, only.Consumer) {
		return nil
	}
	return &r.By
}

// unchanged returns an error if another process has ended or advanced the replay. A target outside of
// the transaction needs it before each batch: what it has sent cannot be taken back.
func (p *Replayer) unchanged(ctx context.Context, s *Status) error {
	now, err := p.status(ctx, p.db, s.Name)
	if err != nil {
		return err
	}
	if now.State == Running && now.Reached == s.Reached && now.Sent == s.Sent {
		return nil
	}
	*s = now
	if now.State == Cancelled {
		return ErrCancelled
	}
	return ErrTaken
}

// whyTaken returns why another process has changed the replay.
func (p *Replayer) whyTaken(ctx context.Context, s *Status) error {
	if err := p.unchanged(ctx, s); err != nil {
		return err
	}
	return ErrTaken
}

// finish marks the replay as done, unless another process has advanced it.
func (p *Replayer) finish(ctx context.Context, r *Request, s *Status) error {
	err := p.db.WriteFound(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, p.db.Dialect.Replays.AdvanceReplay, s.Reached, 0, 0, s.row, s.Reached, s.Sent)
		if err := one(result, err); err != nil {
			return err
		}
		return p.end(ctx, tx, *s, dialect.ReplayDone)
	})
	if errors.Is(err, ErrTaken) {
		return p.whyTaken(ctx, s)
	}
	if err == nil {
		s.State, s.FinishedAt = Done, time.Now().UTC()
		r.tell(*s)
	}
	return err
}

func (r *Request) tell(s Status) {
	if r.Progress != nil {
		r.Progress(s)
	}
}

// wait waits until sending so many messages since began keeps to perSecond. It does not make up for
// earlier delays.
func wait(ctx context.Context, began time.Time, sent, perSecond int) error {
	earliest := began.Add(time.Duration(float64(sent) / float64(perSecond) * float64(time.Second)))
	timer := time.NewTimer(time.Until(earliest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
