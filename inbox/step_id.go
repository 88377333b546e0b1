package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/millrace-go/millrace/internal/stored"
)

// ID returns a UUID made of the message that ctx belongs to and of parts: the same one in each
// retry, redelivery and replay of the message, in every process and on every database. It is
// for what a handler does outside of its transaction: as the idempotency key of a call, or as
// the id of a message or record that is derived from this one. Two ids of one message need
// different parts.
//
// It is made of the Store's Namespace, the consumer's name and the message's key. The epoch is
// no part of it, so a rebuild does not send again what was sent; and a consumer that is renamed
// makes other ids. It works in the handlers of middleware.Inbox, in Inbox.Before, and in the
// handlers of middleware.Deduplicate. Elsewhere, and once the handler has returned, it returns
// [ErrNoMessage].
func ID(ctx context.Context, parts ...string) (string, error) {
	s, err := subjectOf(ctx)
	if err != nil {
		return "", err
	}
	return stored.FormatID(s.uuid(parts)), nil
}

// idFormat begins what every id is made of. Another format needs another one.
const idFormat = "millrace id 1"

// uuid returns the id of s and parts. It is a UUID of version 8, whose bits are the maker's.
func (s *subject) uuid(parts []string) (id [16]byte) {
	h := sha256.New()
	h.Write([]byte(idFormat))
	for _, part := range [][]byte{[]byte(s.namespace), []byte(s.name.Name), s.id} {
		writePart(h, part)
	}
	for _, part := range parts {
		writePart(h, []byte(part))
	}
	copy(id[:], h.Sum(nil))
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// writePart writes a part with its length before it, so that no two lists of parts are alike.
func writePart(h hash.Hash, part []byte) {
	h.Write(binary.AppendUvarint(nil, uint64(len(part))))
	h.Write(part)
}
