package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// aggregatePage shows an aggregate, and has the forms that move it on.
type aggregatePage struct {
	Of      inbox.Aggregate
	Now     admin.WaitingAggregate
	Known   bool
	Missing string // the versions, "" if none is
	Skip    form
	Set     form
	Parked  string // where a missing message may be
}

func (h *Handler) aggregate(v *visit) (any, error) {
	of, err := h.aggregateOf(v, v.query)
	if err != nil {
		return nil, err
	}
	p := &aggregatePage{Of: of, Parked: link("inbox", "status", slug(admin.Parked), "consumer", of.Consumer)}
	if p.Now, p.Known, err = h.look(v, of); err != nil {
		return nil, err
	}
	if misses(p.Now) {
		p.Missing = versions(p.Now.Applied+1, p.Now.Lowest-1)
		p.Skip = act(v, 0, "gaps-skip", "Skip the gap", "bad", choices["gaps-skip"].hint, "sure", "yes")
		p.Skip.Fields = append(p.Skip.Fields, header{"chosen", gapRow(of, p.Now)})
	}
	p.Set = act(v, 0, "aggregate-set", "Set the version", "bad", "For an aggregate that was brought to a version by other means, such as a snapshot. "+
		"The next page says what it would do, and asks.", "consumer", of.Consumer, "epoch", of.Epoch, "aggregate", of.ID, "known", p.Known)
	return p, nil
}

func aggregateLink(of inbox.Aggregate) string {
	return link("aggregate", "consumer", of.Consumer, "epoch", strconv.Itoa(of.Epoch), "aggregate", of.ID)
}

// aggregateOf returns the aggregate that values name, in the newest epoch unless they name one.
func (h *Handler) aggregateOf(v *visit, value func(string) string) (inbox.Aggregate, error) {
	of := inbox.Aggregate{Consumer: value("consumer"), ID: value("aggregate")}
	if of.Consumer == "" || of.ID == "" {
		return of, problem{http.StatusBadRequest, "Which aggregate, of which consumer? Both must be named."}
	}
	wanted, err := epoch(value("epoch"))
	if err != nil {
		return of, err
	}
	known, err := h.ops.Consumers(v.r.Context())
	if err != nil {
		return of, err
	}
	found := false
	for _, k := range known {
		if k.Name == of.Consumer && (value("epoch") == "" || k.Epoch == wanted) {
			of.Epoch, found = max(of.Epoch, k.Epoch), true
		}
	}
	if !found {
		return of, problem{http.StatusNotFound, "There is no such consumer, or not this epoch of it: " + of.Consumer}
	}
	return of, nil
}

// look returns what the consumer knows of an aggregate.
func (h *Handler) look(v *visit, of inbox.Aggregate) (now admin.WaitingAggregate, known bool, err error) {
	now, err = h.ops.Aggregate(v.r.Context(), of)
	if errors.Is(err, inbox.ErrNotFound) {
		return now, false, nil
	}
	return now, err == nil, err
}

// setVersion asks first, with a page that says what it would do.
func (h *Handler) setVersion(v *visit) (answer, error) {
	of, err := h.aggregateOf(v, v.field)
	if err != nil {
		return answer{}, err
	}
	text := v.r.PostFormValue("version")
	version, err := number(text, "version")
	if err != nil || text == "" {
		return answer{}, problem{http.StatusUnprocessableEntity, "Which version? It is a number from 0. Nothing was changed."}
	}
	now, known, err := h.look(v, of)
	switch {
	case err != nil:
		return answer{}, err
	case strconv.FormatBool(known) != v.field("known"):
		return answer{}, problem{http.StatusConflict, "Meanwhile the consumer has seen its first message of it, or forgot it. Nothing was changed: look again."}
	case now.Applied > version:
		return answer{}, problem{http.StatusConflict, fmt.Sprintf("It is at version %d, and cannot go back to %d. Nothing was changed.", now.Applied, version)}
	case v.sure():
		return after("aggregate", "set-version", "consumer", of.Consumer, "epoch", strconv.Itoa(of.Epoch), "aggregate", of.ID),
			h.ops.SetVersion(v.r.Context(), of, version, v.operator())
	}
	q := question{
		Title: fmt.Sprintf("Set aggregate %s to version %d?", short(80, of.ID), version), Lead: settingTo(of, now, known, version),
		Action: "aggregate-set", Label: fmt.Sprintf("Set version %d", version), Tone: "bad", Back: aggregateLink(of),
		Fields: fields("consumer", of.Consumer, "epoch", of.Epoch, "aggregate", of.ID, "known", known, "version", version),
	}
	return q.asked(v, "waiting"), nil
}

// settingTo says what it would do to set the version of an aggregate.
func settingTo(of inbox.Aggregate, now admin.WaitingAggregate, known bool, version int64) (all []string) {
	switch {
	case !known:
		all = append(all, fmt.Sprintf("%s has seen nothing of it. It would begin at version %d.", of.Consumer, version))
	case version == now.Applied:
		all = append(all, fmt.Sprintf("For %s it is at version %d already.", of.Consumer, version))
	default:
		all = append(all, fmt.Sprintf("For %s it is at version %d. From then on a message that brings a version up to %d is acked and never handled: "+
			"%s skipped.", of.Consumer, now.Applied, version, versions(now.Applied+1, version)))
	}
	if now.Held.N == 0 {
		return all
	}
	held := fmt.Sprintf("It holds %s messages; the lowest version is %d. ", count(now.Held), now.Lowest)
	if now.Held.N == 1 {
		held = fmt.Sprintf("It holds 1 message, with version %d. ", now.Lowest)
	}
	switch {
	case now.Lowest <= version:
		held += fmt.Sprintf("Held messages up to version %d are closed without their handler.", version)
	case now.Lowest == version+1:
		held += fmt.Sprintf("Then version %d is handled.", now.Lowest)
	default:
		held += fmt.Sprintf("Then it waits for version %d.", version+1)
	}
	return append(all, held)
}
