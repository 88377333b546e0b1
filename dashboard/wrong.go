package dashboard

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/problems"
)

// problemLine is a problem, and where the page is that shows more of it.
type problemLine struct {
	problems.Problem
	To    string
	Label string
}

// Bad reports whether the problem is more than a warning.
func (p problemLine) Bad() bool { return p.Severity() == inbox.Error }

// addProblems adds what is wrong, and what is to be sent.
func (o *overview) addProblems(ctx context.Context, h *Handler, taken []sample) (err error) {
	of := problems.Service{Store: h.store, Backlogs: taken[len(taken)-1].backlogs}
	if h.config.Outbox != nil {
		if of.Outbox, err = problems.LookAt(ctx, h.config.Outbox); err != nil {
			return err
		}
		o.Unsent, o.Given = of.Outbox.Backlog.Unsent(), of.Outbox.Backlog.Parked
	}
	found, err := h.wrong.get(ctx, h.fresh(), func(ctx context.Context) ([]problems.Problem, error) { return problems.Find(ctx, of) })
	for _, p := range found {
		to, label := whereTo(p)
		o.Problems = append(o.Problems, problemLine{p, to, label})
	}
	return err
}

// whereTo returns the page that shows more of a problem, or has the button that mends it.
func whereTo(p problems.Problem) (to, label string) {
	switch p.Kind {
	case problems.BrokerOut, problems.NoRelay, problems.ShardsUnowned, problems.OutboxLag:
		return "outbox#relays", "Relays"
	case problems.OutboxParked:
		return "outbox#parked", "Decide"
	case problems.Gap:
		return link("waiting", "consumer", p.Consumer), "Aggregates"
	case problems.Outcomes, problems.StepsInDoubt:
		if p.Key != "" {
			return link("message", "key", p.Key), "The oldest"
		}
		return "outbox#unsettled", "Outcomes"
	case problems.Stuck:
		switch {
		case p.More:
			return "failures", "All groups"
		case p.Group != 0:
			return link("failure", "group", identity(p.Group)), "Decide"
		}
		return link("inbox", "status", slug(admin.Parked), "consumer", p.Consumer), "Messages"
	case problems.NotServed, problems.OldPending:
		return link("inbox", "consumer", p.Consumer), "Messages"
	case problems.Paused:
		return "consumers", "Resume"
	}
	return "check", "Check"
}

// out explains err, with which the first page begins if the database does not answer.
func (h *Handler) out(err error) error {
	if !errors.Is(err, inbox.ErrUnavailable) || dialect.Denied(err) {
		return err
	}
	text := "The database is out: nothing can be shown or done here. "
	if last := h.samples.last(); !last.IsZero() {
		text += "It last answered this page " + ago(time.Now(), last) + ". "
	}
	return problem{http.StatusServiceUnavailable, text + err.Error()}
}
