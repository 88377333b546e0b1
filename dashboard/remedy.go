package dashboard

import (
	"context"
	"net/http"
	"strings"

	"github.com/millrace-go/millrace/outbox"
)

// row returns the row that an action is about.
func (v *visit) row() (int64, error) {
	id, err := number(v.r.PostFormValue("id"), "row")
	if err == nil && id == 0 {
		err = problem{http.StatusBadRequest, "The form names no row."}
	}
	return id, err
}

func (h *Handler) retryMessage(v *visit) (answer, error) {
	id, err := v.row()
	if err == nil {
		err = h.ops.Retry(v.r.Context(), id, v.operator(), h.config.Redeliver)
	}
	return after("message", "retry", "key", v.field("key")), err
}

func (h *Handler) discardMessage(v *visit) (answer, error) {
	id, err := v.row()
	if err == nil {
		err = h.ops.Discard(v.r.Context(), id, v.operator())
	}
	return after("message", "discard", "key", v.field("key")), err
}

// replacePayload gives a message the text of a form. A browser sends each line end as two characters.
func (h *Handler) replacePayload(v *visit) (answer, error) {
	id, err := v.row()
	text := strings.ReplaceAll(v.r.PostFormValue("payload"), "\r\n", "\n")
	switch {
	case err != nil:
		return answer{}, err
	case !h.store.Internals().MayReplace():
		return answer{}, problem{http.StatusForbidden, "The Store of this dashboard does not allow that: see inbox.Config.AllowPayloadChange. Nothing was changed."}
	case text == "":
		return answer{}, problem{http.StatusUnprocessableEntity, "The new payload is empty. Nothing was changed; the command millrace can do that."}
	case len(text) > maxShown:
		return answer{}, problem{http.StatusRequestEntityTooLarge, "The new payload is too large for a form. Nothing was changed; the command millrace can do that."}
	}
	err = h.ops.ReplacePayload(v.r.Context(), id, []byte(text), v.operator())
	if err != nil && problemOf(err).status == http.StatusInternalServerError && v.r.Context().Err() == nil {
		err = problem{http.StatusConflict, "Nothing was changed: " + err.Error()} // it is encrypted, say
	}
	return after("message", "replace", "key", v.field("key")), err
}

// revealMessage answers with the page itself, because no address may show what it shows.
func (h *Handler) revealMessage(v *visit) (answer, error) {
	id, err := v.row()
	if err != nil {
		return answer{}, err
	}
	m, err := h.ops.Reveal(v.r.Context(), id, v.operator())
	if err != nil {
		return answer{}, err
	}
	return h.revealed(revealed{message: &m}), nil
}

func (h *Handler) revealed(r revealed) answer {
	p := h.pages["message"]
	p.gather = func(v *visit) (any, error) { return h.messagePage(v, v.field("key"), r) }
	return answer{page: &p}
}

// revealResult shows the result of a handler, as revealMessage shows the payload.
func (h *Handler) revealResult(v *visit) (answer, error) {
	name, epoch, err := v.consumer()
	if err != nil {
		return answer{}, err
	}
	r := revealed{of: consumerOf{name, epoch}}
	r.result, err = h.ops.RevealResult(v.r.Context(), name, epoch, v.field("key"), v.operator())
	return h.revealed(r), err
}

func (h *Handler) pauseConsumer(v *visit) (answer, error) {
	name, epoch, err := v.consumer()
	if err == nil {
		err = h.ops.Pause(v.r.Context(), name, epoch, v.operator())
	}
	return after("consumers", "pause"), err
}

func (h *Handler) resumeConsumer(v *visit) (answer, error) {
	name, epoch, err := v.consumer()
	if err == nil {
		err = h.ops.Resume(v.r.Context(), name, epoch, v.operator())
	}
	return after("consumers", "resume"), err
}

func (v *visit) consumer() (name string, of int, err error) {
	of, err = epoch(v.r.PostFormValue("epoch"))
	return v.field("consumer"), of, err
}

func (h *Handler) retryParked(v *visit) (answer, error) {
	return after("outbox", "outbox-retry"), h.decide(v, (*outbox.Publisher).Retry)
}

func (h *Handler) discardParked(v *visit) (answer, error) {
	return after("outbox", "outbox-discard"), h.decide(v, (*outbox.Publisher).Discard)
}

// decide applies do to a parked message of the outbox.
func (h *Handler) decide(v *visit, do func(*outbox.Publisher, context.Context, int64, outbox.Operator) error) error {
	if h.config.Outbox == nil {
		return errNoOutbox
	}
	id, err := v.row()
	if err != nil {
		return err
	}
	return do(h.config.Outbox, v.r.Context(), id, outbox.Operator(v.operator()))
}
