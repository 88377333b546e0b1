package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// bulk is an action on many messages that takes several requests. All that is known of it
// is in the form that goes on.
type bulk struct {
	Action string // "failure-retry" or "failure-discard"
	Verb   string
	Group  int64
	Until  time.Time
	Mark   int64 // how far it is
	Done   int64
	Of     int64 // as many as there were at the beginning, or as were counted
	Reason string
}

// Percent is how much is done, as far as it can be said.
func (b bulk) Percent() int64 { return min(99, b.Done*100/max(1, b.Of)) }

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

// work goes through messages until they are done or its time is over. Then it answers with a
// page that says how far it is and whose form goes on.
func (h *Handler) work(v *visit, b bulk, all forAll) (answer, error) {
	if err := b.read(v); err != nil {
		return answer{}, err
	}
	ctx, stop := context.WithCancel(v.r.Context())
	defer stop()
	began := time.Now()
	const perSecond = 5000
	n, err := all(ctx, admin.Filter{ErrorGroup: b.Group, ReceivedUntil: b.Until}, admin.Pace{
		PerSecond: perSecond, Mark: &b.Mark,
		Progress: func(int) { // so that each request does something
			if time.Since(began) > h.config.Budget {
				stop()
			}
		},
	})
	b.Done += int64(n)
	switch over := ctx.Err() != nil && v.r.Context().Err() == nil; {
	case err == nil:
		return after("failures", b.Verb+"-all", "n", strconv.FormatInt(b.Done, 10)), nil
	case over && errors.Is(err, context.Canceled):
		p := page{"bulk.html", "failures", "Going on", func(*visit) (any, error) { return b, nil }}
		return answer{page: &p}, nil
	case b.Done > 0:
		p := problemOf(err)
		p.text = plural(b.Done, "message") + " done, then it stopped: " + p.text
		return answer{}, p
	}
	return answer{}, err
}

// read takes from a form what is to be done, and how far it is.
func (b *bulk) read(v *visit) (err error) {
	form := v.r.PostForm
	b.Reason = v.reason()
	for name, n := range map[string]*int64{"group": &b.Group, "mark": &b.Mark, "done": &b.Done, "of": &b.Of} {
		if *n, err = number(form.Get(name), name); err != nil {
			return err
		}
	}
	if b.Until, err = formTime(form, "until"); err != nil {
		return err
	}
	if b.Group == 0 || b.Until.IsZero() {
		return problem{http.StatusBadRequest, "The form does not say which messages are meant."}
	}
	return nil
}
