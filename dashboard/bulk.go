package dashboard

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/stored"
)

// bulk is an action on many messages that takes several requests. The form that continues it holds
// its whole state.
type bulk struct {
	Action string // "failure-retry" or "failure-discard"
	Verb   string
	Group  int64
	Until  time.Time
	Mark   int64 // how far it has come
	Audit  int64 // its number in the audit
	Done   int64
	Of     int64 // the number of messages at the beginning
	Seen   int64 // the number that the button named, 0 if more than one number was possible
	Began  time.Time
	Left   string // why one was left as it was
	Reason string
}

// Percent estimates the part that is done.
func (b bulk) Percent() int64 { return min(99, b.Done*100/max(1, b.Of)) }

// Pace says how fast it goes, and how long it takes from now.
func (b bulk) Pace() string {
	if b.Done == 0 {
		return ""
	}
	took := max(time.Since(b.Began), time.Millisecond)
	left := time.Duration(float64(took) / float64(b.Done) * float64(max(0, b.Of-b.Done)))
	return thousands(int64(float64(b.Done)/took.Seconds())) + " a second, about " + age(left) + " left"
}

type forAll func(ctx context.Context, f admin.Filter, pace admin.Pace) (int, error)

func (h *Handler) retryGroup(v *visit) (answer, error) {
	return h.work(v, bulk{Action: "failure-retry", Verb: "retry"}, func(ctx context.Context, f admin.Filter, pace admin.Pace) (int, error) {
		return h.ops.RetryAll(ctx, f, v.operator(), h.config.Redeliver, pace)
	})
}

func (h *Handler) discardGroup(v *visit) (answer, error) {
	return h.work(v, bulk{Action: "failure-discard", Verb: "discard"}, func(ctx context.Context, f admin.Filter, pace admin.Pace) (int, error) {
		return h.ops.DiscardAll(ctx, f, v.operator(), pace)
	})
}

// work works through messages until they are done, or its time or that of the request is up. Then
// it answers with a page that shows the progress and has the form that continues.
func (h *Handler) work(v *visit, b bulk, all forAll) (answer, error) {
	if err := b.read(v); err != nil {
		return answer{}, err
	}
	if b.Began.IsZero() {
		if err := h.count(v.r.Context(), &b); err != nil {
			return answer{}, err
		}
		if b.Seen > 0 && b.Of > b.Seen {
			return answer{}, problem{http.StatusConflict, "Meanwhile " + plural(b.Of, "message") + " of the group wait for a decision, not " +
				thousands(b.Seen) + ". Nothing was changed: look at the group again."}
		}
	}
	ctx, stop := context.WithCancel(v.r.Context())
	defer stop()
	began := time.Now()
	const perSecond = 5000
	n, err := all(ctx, b.filter(), admin.Pace{
		PerSecond: perSecond, Mark: &b.Mark, Audit: &b.Audit,
		Progress: func(int) { // so that each request makes progress
			if time.Since(began) > h.config.Budget {
				stop()
			}
		},
	})
	b.Done += int64(n)
	var left *stored.LeftError
	if errors.As(err, &left) {
		b.Left = short(500, left.Error()) // a form contains it
	} else if err == nil && b.Left != "" {
		err = errors.New(b.Left)
	}
	out := v.r.Context().Err()
	switch over := ctx.Err() != nil && (out == nil || n > 0 && errors.Is(out, context.DeadlineExceeded)); {
	case err == nil:
		return after("failures", b.Verb+"-all", "n", strconv.FormatInt(b.Done, 10)), nil
	case over && errors.Is(err, ctx.Err()):
		p := page{"bulk.html", "failures", "In progress", func(*visit) (any, error) { return b, nil }}
		return answer{page: &p}, nil
	case b.Done > 0:
		p := problemOf(err)
		p.text = plural(b.Done, "message") + " done, others not: " + p.text
		return answer{}, p
	}
	return answer{}, err
}

func (b *bulk) filter() admin.Filter {
	return admin.Filter{ErrorGroup: b.Group, ReceivedUntil: b.Until}
}

// count counts all messages before the first of them is changed.
func (h *Handler) count(ctx context.Context, b *bulk) error {
	b.Began, b.Of = time.Now(), 0
	takes, err := h.ops.Preview(ctx, b.filter(), math.MaxInt)
	for _, t := range takes {
		b.Of += int64(t.Messages.N)
	}
	return err
}

// read reads the state from the form.
func (b *bulk) read(v *visit) (err error) {
	form := v.r.PostForm
	b.Reason, b.Left = v.reason(), form.Get("left")
	for name, n := range map[string]*int64{"group": &b.Group, "mark": &b.Mark, "audit": &b.Audit, "done": &b.Done, "of": &b.Of, "seen": &b.Seen} {
		if *n, err = number(form.Get(name), name); err != nil {
			return err
		}
	}
	if b.Until, err = formTime(form, "until"); err != nil {
		return err
	}
	if b.Began, err = formTime(form, "began"); err != nil {
		return err
	}
	if b.Group == 0 || b.Until.IsZero() {
		return problem{http.StatusBadRequest, "The form does not name the messages."}
	}
	return nil
}
