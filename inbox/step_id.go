package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/millrace-go/millrace/internal/stored"
)

// ID returns a UUID derived from the message that ctx belongs to and from parts. It is the same in
// each retry, redelivery and replay of the message, in every process and on every database. Use it
// for effects outside the transaction: as the idempotency key of a call, or as the id of a message
// or record that the handler derives from this message. Two ids of one message need different parts.
//
// The id depends on the Store's Namespace, the consumer's name and the message's key. It does not
// depend on the epoch, so a rebuild repeats no effect; a consumer that is renamed gets other ids.
// A consumer of middleware.Inbox and one of middleware.Deduplicate with one name have the same ids.
// Within the Do and Verify of a step that was begun under a FormerKey, the id depends on that key.
// ID works in the handlers of middleware.Inbox, in Inbox.Before, and in the handlers of
// middleware.Deduplicate. Elsewhere, and once the handler has returned, it returns [ErrNoMessage].
func ID(ctx context.Context, parts ...string) (string, error) {
	s, err := subjectOf(ctx)
	if err != nil {
		return "", err
	}
	if s.former {
		s.id = s.formerID
	}
	return stored.FormatID(s.uuid(parts)), nil
}

// idFormat is the first input of every id. A change of the format needs another value.
const idFormat = "millrace id 1"

// uuid returns the id of s and parts. It is a UUID of version 8, whose bits are free to choose.
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

// writePart writes the length of a part before the part, so that different lists of parts never
// write the same bytes.
func writePart(h hash.Hash, part []byte) {
	h.Write(binary.AppendUvarint(nil, uint64(len(part))))
	h.Write(part)
}
