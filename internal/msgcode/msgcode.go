// Package msgcode encodes messages without loss: it keeps UUIDs and metadata of any bytes, and the
// difference between nil and empty.
package msgcode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

const version = 1

// errShort is wrapped into errors about bytes that end too early.
var errShort = errors.New("cut short")

// Encode encodes msgs. Equal messages give equal bytes.
func Encode(msgs []*message.Message) []byte {
	b := []byte{version}
	b = binary.AppendUvarint(b, uint64(len(msgs)))
	for _, m := range msgs {
		b = appendString(b, m.UUID)
		b = AppendMetadata(b, m.Metadata)
		if m.Payload == nil {
			b = binary.AppendUvarint(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(m.Payload))+1)
		b = append(b, m.Payload...)
	}
	return b
}

// AppendMetadata appends md to b with sorted keys.
func AppendMetadata(b []byte, md message.Metadata) []byte {
	if md == nil {
		return binary.AppendUvarint(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(md))+1)
	for _, k := range slices.Sorted(maps.Keys(md)) {
		b = appendString(b, k)
		b = appendString(b, md[k])
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// Decode reverses [Encode].
func Decode(b []byte) ([]*message.Message, error) {
	if len(b) == 0 || b[0] != version {
		return nil, fmt.Errorf("decode messages: unknown encoding, written by a newer release?")
	}
	r := reader{b: b[1:]}
	n := r.number()
	var msgs []*message.Message
	for i := uint64(0); i < n && r.err == nil; i++ {
		id := r.string()
		md := r.metadata()
		var payload message.Payload
		if size := r.number(); size > 0 {
			payload = append(message.Payload{}, r.take(size-1)...)
		}
		m := message.NewMessage(id, payload)
		m.Metadata = md
		msgs = append(msgs, m)
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("decode messages: %w", err)
	}
	return msgs, nil
}

// DecodeMetadata reverses [AppendMetadata].
func DecodeMetadata(b []byte) (message.Metadata, error) {
	r := reader{b: b}
	md := r.metadata()
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("decode metadata: %w", err)
	}
	return md, nil
}

type reader struct {
	b   []byte
	err error
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) string() string { return string(r.take(r.number())) }

func (r *reader) metadata() message.Metadata {
	n := r.number()
	if n == 0 {
		return nil
	}
	md := message.Metadata{}
	for i := uint64(1); i < n && r.err == nil; i++ {
		k := r.string()
		md[k] = r.string()
	}
	return md
}

func (r *reader) fail() {
	if r.err == nil {
		r.err = errShort
	}
	r.b = nil
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("%d bytes left over", len(r.b))
	}
	return r.err
}
