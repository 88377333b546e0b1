package dashboard

import (
	"context"
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/outbox"
)

// problem says why a request failed, in words for the sender.
type problem struct {
	status int
	text   string
}

func (p problem) Error() string { return p.text }

// problemOf converts an error for the sender.
func problemOf(err error) problem {
	var p problem
	var cursor stored.CursorError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &cursor):
		return problem{http.StatusBadRequest, "The list has no such place: begin with its first page. " + err.Error()}
	case errors.Is(err, inbox.ErrNotFound), errors.Is(err, outbox.ErrNotFound):
		return problem{http.StatusNotFound, "It is not here any more: it was handled or discarded, or never existed. Nothing was changed: " + err.Error()}
	case errors.Is(err, inbox.ErrWrongState), errors.Is(err, outbox.ErrWrongState):
		return problem{http.StatusConflict, "Somebody was faster, or it went on by itself. Nothing was changed: " + err.Error()}
	case errors.Is(err, inbox.ErrNotServed):
		return problem{http.StatusConflict, err.Error()}
	case errors.Is(err, inbox.ErrUnavailable), errors.Is(err, outbox.ErrUnavailable):
		return problem{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return problem{http.StatusServiceUnavailable, "The database took too long to answer."}
	}
	return problem{http.StatusInternalServerError, err.Error()}
}

// fail answers with the problem, and logs it unless it is the sender's. It logs the address without
// its query.
func (h *Handler) fail(w http.ResponseWriter, v *visit, err error) {
	p := problemOf(err)
	if p.status >= http.StatusInternalServerError && !errors.Is(err, context.Canceled) {
		h.config.Logger.Error("dashboard: a request failed", err, watermill.LogFields{"method": v.r.Method, "page": v.path})
	}
	v.Title = http.StatusText(p.status)
	v.Data = p.text
	h.render(w, v, "problem.html", p.status)
}
