package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/original"
)

// useQueuesOriginal has d know the message as the queue took it that delivers d, where a middleware hands on one of
// its own with another UUID.
func (d *delivery) useQueuesOriginal() error {
	a := d.queueAttempt()
	if a == nil || a.queue.store != d.consumer.store || a.queue.name != d.consumer.queueName() || d.as.Came.Taken() {
		return nil
	}
	came := a.came
	if l := leasedOf(d.ctx); l != nil {
		var err error
		if came, err = l.original(nil); err != nil {
			return err
		}
	}
	if !came.Is(d.msg) {
		d.as.Came = came
	}
	return nil
}

// fingerprinted finds what d is compared by: its payload as it came, or what Fingerprint says
// of the message that the inbox sees. A queue that delivers asks it about the message that it
// was given, so that is what counts there.
func (d *delivery) fingerprinted() error {
	print := d.consumer.config.Fingerprint
	if of := print; of != nil {
		print = func(msg *message.Message) ([]byte, error) { return callFingerprint(of, msg) }
	}
	switch {
	case print == nil:
		d.fingerprint = sha256.Sum256(d.as.Came.Payload)
		d.otherHash = func() (int64, bool) { return hashOf(sha256.Sum256(d.as.Seen.Payload)), true }
	case d.as.Changed() && d.queueAttempt() != nil:
		d.otherHash = d.printed(print, d.as.Seen)
		if body, err := print(d.copyOf(d.as.Came)); err == nil {
			d.fingerprint = sha256.Sum256(body)
			break
		}
		fallthrough
	default:
		body, err := print(d.msg)
		if err != nil {
			return err
		}
		d.fingerprint = sha256.Sum256(body)
		if d.otherHash == nil {
			d.otherHash = d.printed(print, d.as.Came)
		}
	}
	d.hash = hashOf(d.fingerprint)
	if d.lease != nil { // it is what was stored, whatever Fingerprint says by now
		d.hash = d.lease.row.Hash
	}
	return nil
}

// copyOf returns a message for a function of the user's, with the context that d came with.
func (d *delivery) copyOf(o *original.Message) *message.Message {
	msg := o.Copy()
	msg.SetContext(d.ctx)
	return msg
}

// printed hashes what print says of a message.
func (d *delivery) printed(print func(*message.Message) ([]byte, error), of *original.Message) func() (int64, bool) {
	return func() (int64, bool) {
		body, err := print(d.copyOf(of))
		return hashOf(sha256.Sum256(body)), err == nil
	}
}

// hashOf is what is stored of a fingerprint.
func hashOf(fingerprint [sha256.Size]byte) int64 {
	return int64(binary.BigEndian.Uint64(fingerprint[:8])) //nolint:gosec // the bits matter, not the sign
}

// is reports whether hash is that of d: of the payload as it came, or of the payload that
// the inbox sees, by which others may have known it.
func (d *delivery) is(hash int64) bool {
	if hash == d.hash || !d.as.Changed() {
		return hash == d.hash
	}
	other, known := d.otherHash()
	return known && hash == other
}

// refuseChangedKey has a message kept for an operator that changed between a queue and the inbox in a way that gives
// it another key: what the queue stores and what goes past it would be two messages.
func (d *delivery) refuseChangedKey() {
	if d.lease != nil || d.consumer.heir != nil || d.keyless.text != "" || !d.as.Changed() || d.queueAttempt() == nil {
		return
	}
	key, err := d.consumer.config.Key.find(d.copyOf(d.as.Came))
	if err != nil || key == d.key { // an error: the queue does not know it at all
		return
	}
	d.keyless = why{ReasonNoKey, fmt.Sprintf(ReasonNoKey+": it is %.200q in middleware.Inbox, and was %.200q where pubsub.Durable "+
		"took the message. A middleware between them changed it: give both the same Key, of something that no middleware "+
		"changes, or put that middleware inside the inbox; then try the message again", d.key, key)}
}
