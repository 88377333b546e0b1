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

// openPayloads opens the payloads of messages just leased, and returns the messages that can be
// delivered. A message whose payload is lost for good fails terminally. Another one is put off, and
// parked once it has been to blame too often.
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

// reads decodes the metadata of l and reports whether the message can be delivered.
func (l *Leased) reads(ctx context.Context) bool {
	err := l.decode()
	if err != nil {
		l.putOff(ctx, err, false)
	}
	return err == nil
}

// opens opens the payload of l and reports whether the message goes on to its delivery.
func (l *Leased) opens(ctx context.Context, hasAllTime bool) bool {
	err := l.open(ctx)
	if err == nil {
		l.queue.unopened.Store(0)
		return true
	}
	blamed := (ctx.Err() == nil || hasAllTime) && l.toBlame(err, ctx.Err() != nil)
	// The queue parks a killer next, and a handled message does not need its payload.
	if l.killer() || l.row.Status == stored.Settling && (unopenable(err) || l.metadata == nil || blamed) {
		return true
	}
	l.putOff(ctx, err, blamed)
	return false
}

// mostUnopenable bounds how many messages with unopenable payloads a queue remembers.
const mostUnopenable = 10_000

// toBlame reports whether the message itself is to blame for its payload: the same codec, or blob
// store, has opened others since the message last failed so in this process. During an outage a
// cache may still give some; so unless it took too long, an error that is temporary, or of the
// network, blames no message.
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

// passes reports whether the error of a codec or a blob store says that it is temporary.
func passes(err error) bool {
	var temporary interface{ Temporary() bool }
	var timeout interface{ Timeout() bool }
	var file *fs.PathError // it looks like a network error
	return errors.As(err, &temporary) && temporary.Temporary() || errors.As(err, &timeout) && timeout.Timeout() ||
		!errors.As(err, &file) && dialect.Classify(err).Down()
}

// ofNetwork reports whether err comes from a network, and not from a file system, whose errors look
// alike.
func ofNetwork(err error) bool {
	var network net.Error
	if !errors.As(err, &network) {
		return false
	}
	_, file := network.(syscall.Errno) //nolint:errorlint // within a network's error it is not the first
	return !file
}

// open opens the payload of l, unless its row holds the payload as it arrived.
func (l *Leased) open(ctx context.Context) error {
	if l.row.Whole() {
		return nil
	}
	l.row.Name = []byte(l.queue.name.Name)
	metadata, _ := l.row.Decoded() // decode reports the error
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

// payload returns the payload to deliver, nil if it could not be opened.
func (l *Leased) payload() []byte {
	if l.row.Whole() {
		return l.row.Payload
	}
	return l.opened
}

// putOff puts back a message that could not be read. That counts as an attempt if the message is
// blamed.
func (l *Leased) putOff(ctx context.Context, cause error, blamed bool) {
	q, closing := l.queue, errors.Is(ctx.Err(), context.Canceled)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	var err error
	if closing {
		err = q.PutBack(ctx, l)
	} else {
		became := l.fateUnopened(cause, blamed)
		what := unnoted // it may be put off many times
		if blamed || became.status.Stuck() {
			what = itFailed
		}
		err = l.move(ctx, became, what)
		l.logUnopened(cause, blamed, became)
	}
	if err != nil && !errors.Is(err, ErrLost) {
		q.store.log.Error("inbox: a stored message could not be put back; it is redelivered after its lease", err,
			l.event(fate{}).fields())
	}
}

func (l *Leased) logUnopened(cause error, blamed bool, became fate) {
	log, fields := l.queue.store.log, l.event(became).fields()
	if blamed {
		log.Error("inbox: the payload of a stored message cannot be opened, while others can; this counts as an attempt", cause, fields)
		return
	}
	log.Error("inbox: the payload of a stored message cannot be opened; this does not count as an attempt", cause, fields)
}

// fateUnopened returns the fate of a message that could not be read.
func (l *Leased) fateUnopened(cause error, blamed bool) fate {
	config, attempts := &l.queue.config, l.row.Attempts
	if l.suspect { // charged with an attempt that is not made
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

// fateBlamed returns the fate of a message that is not handled yet and is to blame for its payload.
func (l *Leased) fateBlamed(attempts int, last lastError) fate {
	config := &l.queue.config
	if attempts >= config.MaxAttempts {
		text := fmt.Sprintf("failed %d times, last because its payload could not be opened", attempts)
		return fate{stored.Parked, attempts, stored.Never, why{ReasonPayload, text}, last}
	}
	delay := backoff(config.MinBackoff, config.MaxBackoff, attempts)
	return fate{stored.FailedRetryable, attempts, delay, why{ReasonPayload, "the payload cannot be opened now, but others can"}, last}
}

// dropBlobs removes the payloads of closed messages from the blob store. The janitor removes those
// that fail here, and those of messages that were closed elsewhere.
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
		q.store.log.Error("inbox: payloads of completed messages could not be removed; the janitor removes them after Config.BlobGrace",
			database.Explain(err), q.fields())
	}
}
