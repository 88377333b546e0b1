package inbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"syscall"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// openPayloads gets the payloads of messages just leased. One that nobody can open any more
// has failed for good; one that cannot be opened now comes again, until others have been opened
// often enough meanwhile.
func (q *Queue) openPayloads(ctx context.Context, leased []*Leased) (rest []*Leased) {
	bound, cancel := context.WithTimeout(ctx, q.config.Lease/2) // leases are not renewed meanwhile
	defer cancel()
	hasAllTime := true
	for _, l := range leased {
		if l.reads(bound) && (l.row.Whole() || l.opens(bound, hasAllTime)) {
			rest = append(rest, l)
		}
		hasAllTime = hasAllTime && l.row.Whole()
	}
	return rest
}

// reads decodes the metadata of l and reports whether the message can go its way.
func (l *Leased) reads(ctx context.Context) bool {
	err := l.decode()
	if err != nil {
		l.putOff(ctx, err, false)
	}
	return err == nil
}

// opens gets the payload of l and reports whether the message can go its way.
func (l *Leased) opens(ctx context.Context, hasAllTime bool) bool {
	err := l.open(ctx)
	if err == nil {
		l.queue.unopened.Store(0)
		return true
	}
	blamed := (ctx.Err() == nil || hasAllTime) && l.toBlame(err, ctx.Err() != nil)
	// A killer is parked next. Of one that is handled nobody needs the payload.
	if l.killer() || l.row.Status == stored.Settling && (unopenable(err) || l.metadata == nil || blamed) {
		return true
	}
	l.putOff(ctx, err, blamed)
	return false
}

// mostUnopenable is of how many messages a queue remembers that their payloads could not be had.
const mostUnopenable = 10_000

// toBlame reports whether it is the message's fault that its payload cannot be had: others were had by
// the same means since it failed so in this process the last time. In an outage none are, unless a cache
// gives some; then the error has to tell.
func (l *Leased) toBlame(cause error, tookTooLong bool) bool {
	var failed *openError
	if !errors.As(cause, &failed) || errors.Is(cause, ErrUnavailable) || (passes(cause) || ofNetwork(cause)) && !tookTooLong {
		return false
	}
	id, others := strconv.FormatInt(l.row.ID, 10), failed.others.Load()
	before, known := l.queue.unopenable.Get(id)
	l.queue.unopenable.Add(id, others)
	return known && others > before
}

// passes reports whether the error of a codec or a blob store says that it is a matter of time.
func passes(err error) bool {
	var temporary interface{ Temporary() bool }
	var timeout interface{ Timeout() bool }
	var file *fs.PathError // which looks like one of a network
	return errors.As(err, &temporary) && temporary.Temporary() || errors.As(err, &timeout) && timeout.Timeout() ||
		!errors.As(err, &file) && dialect.Classify(err).Down()
}

// ofNetwork reports whether err is a network's. One of a file system looks alike.
func ofNetwork(err error) bool {
	var network net.Error
	if !errors.As(err, &network) {
		return false
	}
	_, file := network.(syscall.Errno) //nolint:errorlint // within a network's error it is not the first
	return !file
}

// open gets the payload of l where its row keeps something else.
func (l *Leased) open(ctx context.Context) error {
	if l.row.Whole() {
		return nil
	}
	l.row.Name = []byte(l.queue.name.Name)
	metadata, _ := l.row.Decoded() // what cannot be decoded is told where it is delivered
	open := func() (err error) {
		defer recovered("open the payload", &err)
		l.opened, err = l.queue.store.openPayload(ctx, &l.row, metadata)
		return sound(err)
	}
	s, err := l.queue.store, open()
	var p *panicError
	if errors.As(s.counted(err), &p) {
		others := &s.fetched
		if l.row.Form == stored.Sealed {
			others = &s.unsealed
		}
		err = &openError{err, others}
	}
	return err
}

// payload is what is delivered. It is none where the row keeps something else, and that
// could not be opened.
func (l *Leased) payload() []byte {
	if l.row.Whole() {
		return l.row.Payload
	}
	return l.opened
}

// putOff gives back a message whose payload could not be had, by its own fault where it is blamed.
func (l *Leased) putOff(ctx context.Context, cause error, blamed bool) {
	q, closing := l.queue, errors.Is(ctx.Err(), context.Canceled)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	var err error
	if closing {
		err = q.PutBack(ctx, l)
	} else {
		became := l.fateUnopened(cause, blamed)
		what := unnoted // it comes again, and may do so for long
		if blamed || became.status.Stuck() {
			what = itFailed
		}
		err = l.move(ctx, became, what)
		l.sayUnopened(cause, blamed, became)
	}
	if err != nil && !errors.Is(err, ErrLost) {
		q.store.log.Error("inbox: a stored message could not be given back; it comes again after its lease", err,
			l.event(fate{}).fields())
	}
}

func (l *Leased) sayUnopened(cause error, blamed bool, became fate) {
	log, fields := l.queue.store.log, l.event(became).fields()
	if blamed {
		log.Error("inbox: the payload of a stored message cannot be had, while others can; that was an attempt", cause, fields)
		return
	}
	log.Error("inbox: the payload of a stored message cannot be had; that was no attempt", cause, fields)
}

// fateUnopened decides what becomes of a message whose payload was not to be had.
func (l *Leased) fateUnopened(cause error, blamed bool) fate {
	config, attempts := &l.queue.config, l.row.Attempts
	if l.suspect { // charged for a try that is not made
		attempts--
	}
	last := lastErrorOf(cause)
	switch {
	case errors.Is(cause, ErrErased):
		return fate{stored.FailedTerminal, attempts, stored.Never, why{ReasonPayload, ErrErased.Error()}, last}
	case errors.Is(cause, stored.ErrMetadata):
		return fate{stored.FailedTerminal, attempts, stored.Never, why{ReasonPayload, stored.ErrMetadata.Error()}, last}
	case IsTerminal(cause):
		return fate{stored.FailedTerminal, attempts, stored.Never, why{ReasonPayload, "the payload cannot be opened"}, last}
	}
	if blamed {
		return l.fateBlamed(attempts+1, last)
	}
	status := stored.FailedRetryable
	if l.row.Status == stored.Settling {
		status = stored.Settling
	}
	delay := backoff(config.MinBackoff, config.MaxBackoff, int(l.queue.unopened.Add(1)))
	return fate{status, attempts, delay, why{ReasonPayload, "the payload cannot be opened now"}, last}
}

// fateBlamed is what becomes of a message that is not handled yet, and whose payload alone is not to be had.
func (l *Leased) fateBlamed(attempts int, last lastError) fate {
	config := &l.queue.config
	if attempts >= config.MaxAttempts {
		text := fmt.Sprintf("failed %d times, at last since its payload could not be opened", attempts)
		return fate{stored.Parked, attempts, stored.Never, why{ReasonPayload, text}, last}
	}
	delay := backoff(config.MinBackoff, config.MaxBackoff, attempts)
	return fate{stored.FailedRetryable, attempts, delay, why{ReasonPayload, "the payload cannot be opened now, and others can"}, last}
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
			database.Explain(err), q.fields())
	}
}
