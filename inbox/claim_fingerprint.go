package inbox

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/original"
)

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

// compare determines the hash by which d is compared with another message of its key.
func (d *delivery) compare() error {
	if d.keyless.text == "" {
		err := d.fingerprinted()
		if err == nil {
			return nil
		}
		if d.lease == nil { // else the hash in its row is used
			if err := d.withoutKey(err); err != nil {
				return err
			}
		}
	}
	d.fingerprint = sha256.Sum256(d.as.Came.Payload)
	d.hash = hashOf(d.fingerprint)
	d.otherHash = func() (int64, bool) { return 0, false }
	if d.lease != nil {
		d.hash = d.lease.row.Hash
	}
	return nil
}
