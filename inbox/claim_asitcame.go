package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/original"
)

// useQueuesOriginal makes the message that the queue received the original of d, if a middleware
// between queue and inbox passes on a message of its own with another UUID.
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

// fingerprinted sets the fingerprint of d: that of its payload as it came, or the result of
// Fingerprint for the message that the inbox sees. If a queue delivers d, Fingerprint gets the
// message that the queue received, since the queue calls it with that one too.
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
	if d.lease != nil { // the stored hash counts, even if Fingerprint has changed since
		d.hash = d.lease.row.Hash
	}
	return nil
}

// copyOf returns a copy of o for a function of the user's, with the context that d came with.
func (d *delivery) copyOf(o *original.Message) *message.Message {
	msg := o.Copy()
	msg.SetContext(d.ctx)
	return msg
}

// printed returns a function that calls print with a copy of a message and hashes the result.
func (d *delivery) printed(print func(*message.Message) ([]byte, error), of *original.Message) func() (int64, bool) {
	return func() (int64, bool) {
		body, err := print(d.copyOf(of))
		return hashOf(sha256.Sum256(body)), err == nil
	}
}

// hashOf returns the part of a fingerprint that is stored.
func hashOf(fingerprint [sha256.Size]byte) int64 {
	return int64(binary.BigEndian.Uint64(fingerprint[:8])) //nolint:gosec // the bits matter, not the sign
}

// is reports whether hash is that of d: of the payload as it came, or of the payload that
// the inbox sees, with which another process may have recorded it.
func (d *delivery) is(hash int64) bool {
	if hash == d.hash || !d.as.Changed() {
		return hash == d.hash
	}
	other, known := d.otherHash()
	return known && hash == other
}

// refuseChangedKey marks d as to be parked if a middleware between queue and inbox changed its key:
// the message would have one key if the queue stores it, and another one if the queue passes it on.
func (d *delivery) refuseChangedKey() {
	if d.lease != nil || d.consumer.heir != nil || d.keyless.text != "" || !d.as.Changed() || d.queueAttempt() == nil {
		return
	}
	key, err := d.consumer.config.Key.find(d.copyOf(d.as.Came))
	if err != nil || key == d.key { // on an error, the queue has no key for it
		return
	}
	d.keyless = why{ReasonNoKey, fmt.Sprintf(ReasonNoKey+": it is %.200q in middleware.Inbox, but was %.200q in pubsub.Durable. "+
		"A middleware between them changed it: give both the same Key, of something that no middleware changes, or put "+
		"that middleware inside the inbox; then try the message again", d.key, key)}
}
