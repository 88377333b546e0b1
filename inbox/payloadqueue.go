package inbox

import (
	"context"
	"errors"
)

// openPayloads gets the payloads of messages just leased. One that nobody can open any more
// has failed for good; one that cannot be opened now comes again.
func (q *Queue) openPayloads(ctx context.Context, leased []*Leased) (rest []*Leased) {
	bound, cancel := context.WithTimeout(ctx, q.config.Lease/2) // leases are not renewed meanwhile
	defer cancel()
	for _, l := range leased {
		if l.reads(bound) && (l.row.whole() || l.opens(bound)) {
			rest = append(rest, l)
		}
	}
	return rest
}

// reads decodes the metadata of l and reports whether the message can go its way.
func (l *Leased) reads(ctx context.Context) bool {
	err := l.decode()
	if err != nil {
		l.putOff(ctx, err)
	}
	return err == nil
}

// opens gets the payload of l and reports whether the message can go its way.
func (l *Leased) opens(ctx context.Context) bool {
	err := l.open(ctx)
	if err == nil {
		l.queue.unopened.Store(0)
		return true
	}
	// A killer is parked next. Of one that is handled nobody needs the payload.
	if l.killer() || l.row.Status == Settling && (unopenable(err) || l.metadata == nil) {
		return true
	}
	l.putOff(ctx, err)
	return false
}

// open gets the payload of l where its row keeps something else.
func (l *Leased) open(ctx context.Context) error {
	if l.row.whole() {
		return nil
	}
	l.row.Name = []byte(l.queue.name.name)
	m := l.row.message()
	open := func() (err error) {
		defer recovered("open the payload", &err)
		l.opened, err = l.queue.store.openPayload(ctx, &m)
		return sound(err)
	}
	return l.queue.store.counted(open())
}

// payload is what is delivered. It is none where the row keeps something else, and that
// could not be opened.
func (l *Leased) payload() []byte {
	if l.row.whole() {
		return l.row.Payload
	}
	return l.opened
}

// putOff gives back a message whose payload could not be had.
func (l *Leased) putOff(ctx context.Context, cause error) {
	q, closing := l.queue, errors.Is(ctx.Err(), context.Canceled)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	var err error
	if closing {
		err = q.PutBack(ctx, l)
	} else {
		became := l.fateUnopened(cause)
		err = l.move(ctx, became)
		q.store.log.Error("inbox: the payload of a stored message cannot be had; that was no attempt", cause,
			l.event(became).fields())
	}
	if err != nil && !errors.Is(err, ErrLost) {
		q.store.log.Error("inbox: a stored message could not be given back; it comes again after its lease", err,
			l.event(fate{}).fields())
	}
}

// fateUnopened decides what becomes of a message whose payload was not to be had.
func (l *Leased) fateUnopened(cause error) fate {
	config, attempts := &l.queue.config, l.row.Attempts
	if l.suspect { // charged for a try that is not made
		attempts--
	}
	last := errorText(cause)
	switch {
	case errors.Is(cause, ErrErased):
		return fate{FailedTerminal, attempts, never, why{ReasonPayload, ErrErased.Error()}, last}
	case errors.Is(cause, errMetadata):
		return fate{FailedTerminal, attempts, never, why{ReasonPayload, errMetadata.Error()}, last}
	case IsTerminal(cause):
		return fate{FailedTerminal, attempts, never, why{ReasonPayload, "the payload cannot be opened"}, last}
	}
	status := FailedRetryable
	if l.row.Status == Settling {
		status = Settling
	}
	delay := backoff(config.MinBackoff, config.MaxBackoff, int(l.queue.unopened.Add(1)))
	return fate{status, attempts, delay, why{ReasonPayload, "the payload cannot be opened now"}, last}
}

// dropBlobs removes the payloads of messages that are closed. What fails here, and what was
// closed elsewhere, is left to the janitor.
func (q *Queue) dropBlobs(ctx context.Context, closed []*Leased) {
	var names [][]byte
	for _, l := range closed {
		if l.row.Ref != nil {
			names = append(names, l.row.Ref)
		}
	}
	if len(names) == 0 {
		return
	}
	if err := q.store.removeBlobs(ctx, names); err != nil {
		q.store.log.Error("inbox: payloads of completed messages were not removed; they are when Config.BlobGrace is over",
			explain(err), q.fields())
	}
}
