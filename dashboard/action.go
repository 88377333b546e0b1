package dashboard

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// action changes something. It returns the page to redirect to, or the page to answer with.
type action struct {
	do    func(*visit) (answer, error)
	limit int64 // of the form in bytes, maxBody unless it is set
}

// answer follows an action: a redirect, or a page.
type answer struct {
	to   string
	page *page
}

// post carries out an action if the request comes from a page of this site, from an operator who
// may act, and with a reason.
func (h *Handler) post(w http.ResponseWriter, v *visit) {
	a, found := h.actions[v.path]
	if !found {
		h.fail(w, v, problem{http.StatusNotFound, "There is no such action."})
		return
	}
	if err := h.permit(w, v, cmp.Or(a.limit, maxBody)); err != nil {
		h.fail(w, v, err)
		return
	}
	next, err := a.do(v)
	h.groups.acted.Add(1) // the operator wants to see the result
	h.wrong.acted.Add(1)
	h.samples.stale.Store(true)
	switch {
	case err != nil:
		h.fail(w, v, err)
	case next.page != nil:
		h.show(w, v, *next.page, http.StatusOK)
	default:
		w.Header().Set("Location", v.Root+next.to)
		w.WriteHeader(http.StatusSeeOther)
	}
}

func (h *Handler) permit(w http.ResponseWriter, v *visit, limit int64) error {
	if err := h.cross.Check(v.r); err != nil {
		return problem{http.StatusForbidden, "This request came from another site, so nothing was changed."}
	}
	if h.config.ReadOnly {
		return problem{http.StatusForbidden, "This dashboard is read-only, so nothing was changed."}
	}
	if v.Operator == "" {
		return problem{http.StatusForbidden, "Nobody is signed in whose name could go into the audit log, so nothing was changed."}
	}
	v.r.Body = http.MaxBytesReader(w, v.r.Body, limit)
	if err := v.r.ParseForm(); err != nil {
		return problem{http.StatusRequestEntityTooLarge, "This form cannot be read, or is too large."}
	}
	switch reason := v.reason(); {
	case reason == "":
		return problem{http.StatusUnprocessableEntity, "Say why: the reason goes into the audit log. Go back and add one; nothing was changed."}
	case len(reason) > maxReason:
		return problem{http.StatusUnprocessableEntity, fmt.Sprintf("The reason has %d bytes, and at most %d can be stored. Nothing was changed.", len(reason), maxReason)}
	}
	return nil
}

// done has the sentence that follows each action. An address names a sentence and contains no text,
// so it cannot put words on the page.
var done = map[string]string{
	"retry":          "The message will be handled again.",
	"discard":        "The message was discarded. It counts as handled.",
	"pause":          "The consumer is paused: its stored messages are not delivered.",
	"resume":         "The consumer is no longer paused.",
	"outbox-retry":   "Relays will try to send the message again.",
	"outbox-discard": "The message was discarded and will not be sent.",
	"retry-all":      "%s will be handled again.",
	"discard-all":    "%s were discarded. They count as handled.",
	"replace":        "The payload was replaced. Retry the message to have it handled.",
	"set-version":    "The version of the aggregate is set.",

	"messages-retry":      "%s will be handled again.",
	"messages-discard":    "%s were discarded. They count as handled.",
	"parked-retry":        "Relays will try to send %s again.",
	"parked-discard":      "%s were discarded and will not be sent.",
	"outcomes-redispatch": "%s were stored in the outbox, and a relay sends them.",
	"gaps-skip":           "%s skipped: the messages held behind are delivered.",
}

// after returns the address of a page that says what was done.
func after(page, what string, pairs ...string) answer {
	return answer{to: link(page, append(pairs, "done", what)...)}
}

// said returns the sentence that the address names.
func (v *visit) said() string {
	sentence := done[v.query("done")]
	if !strings.Contains(sentence, "%s") {
		return sentence
	}
	n, err := v.number("n")
	if err != nil {
		return ""
	}
	return fmt.Sprintf(sentence, plural(n, cmp.Or(choices[v.query("done")].thing, "message")))
}

// formTime parses a time in microseconds from a form or an address.
func formTime(values url.Values, name string) (time.Time, error) {
	us, err := number(values.Get(name), "time")
	if err != nil || us == 0 {
		return time.Time{}, err
	}
	return time.UnixMicro(us).UTC(), nil
}
