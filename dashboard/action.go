package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// action changes something. It returns where the browser goes then, from the first page, or
// the page that it answers with.
type action struct {
	back string // the page with its form
	do   func(*visit) (answer, error)
}

// answer is what follows an action: another address, or a page at once.
type answer struct {
	to   string
	page *page
}

// post carries an action out, if it comes from a page of this site, from somebody who may,
// and with a reason.
func (h *Handler) post(w http.ResponseWriter, v *visit) {
	a, found := h.actions[v.path]
	if !found {
		h.fail(w, v, problem{http.StatusNotFound, "There is no such action."})
		return
	}
	if err := h.permit(w, v); err != nil {
		h.fail(w, v, err)
		return
	}
	next, err := a.do(v)
	h.groups.stale.Store(true) // who acts wants to see what became of it
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

func (h *Handler) permit(w http.ResponseWriter, v *visit) error {
	if err := h.cross.Check(v.r); err != nil {
		return problem{http.StatusForbidden, "This request came from another site, so nothing was changed."}
	}
	if h.config.ReadOnly {
		return problem{http.StatusForbidden, "This dashboard is read-only, so nothing was changed."}
	}
	if v.Operator == "" {
		return problem{http.StatusForbidden, "Nobody is signed in whose name could go into the audit log, so nothing was changed."}
	}
	v.r.Body = http.MaxBytesReader(w, v.r.Body, maxBody)
	if err := v.r.ParseForm(); err != nil {
		return problem{http.StatusRequestEntityTooLarge, "This form cannot be read, or is too large."}
	}
	switch reason := v.reason(); {
	case reason == "":
		return problem{http.StatusUnprocessableEntity, "Say why: the reason goes into the audit log. Go back and add one; nothing was changed."}
	case len(reason) > maxReason:
		return problem{http.StatusUnprocessableEntity, fmt.Sprintf("The reason has %d bytes, of which %d are kept at most. Nothing was changed.", len(reason), maxReason)}
	}
	return nil
}

// done are the sentences that follow an action. An address names one of them and carries no
// text of its own, so it cannot put words on the page.
var done = map[string]string{
	"retry":          "The message will be handled again.",
	"discard":        "The message was discarded. It counts as handled.",
	"pause":          "The consumer is paused: nothing that is stored for it is delivered.",
	"resume":         "The consumer goes on.",
	"outbox-retry":   "Relays will try to send the message again.",
	"outbox-discard": "The message was discarded and will not be sent.",
	"retry-all":      "%s will be handled again.",
	"discard-all":    "%s were discarded. They count as handled.",
}

// after is the address of a page that says what was done.
func after(page, what string, pairs ...string) answer {
	return answer{to: link(page, append(pairs, "done", what)...)}
}

// said returns the sentence that an address asks for.
func (v *visit) said() string {
	sentence := done[v.query("done")]
	if !strings.Contains(sentence, "%s") {
		return sentence
	}
	n, err := v.number("n")
	if err != nil {
		return ""
	}
	return fmt.Sprintf(sentence, plural(n, "message"))
}

// formTime reads a time that a form or an address carries in microseconds.
func formTime(values url.Values, name string) (time.Time, error) {
	us, err := number(values.Get(name), "time")
	if err != nil || us == 0 {
		return time.Time{}, err
	}
	return time.UnixMicro(us).UTC(), nil
}
