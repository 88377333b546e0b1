// Package keycode turns message keys into stored keys. Different keys give different stored keys.
package keycode

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// The first byte of a stored key is its form, so keys of different forms never collide.
const (
	formUUID    = 1 // sixteen bytes of a canonical lower-case UUID
	formBytes   = 2 // the key itself
	formHash    = 3 // SHA-256 of a key longer than maxBytes
	formDerived = 4 // SHA-256 of another stored key and a fingerprint
	formKeyless = 5 // SHA-256 of a message that has no key
)

// MaxLen is the greatest length of a stored key.
const MaxLen = 128

const maxBytes = MaxLen - 1

// Encode returns the stored form of key.
func Encode(key string) []byte {
	if id, ok := uuid(key); ok {
		return id
	}
	if len(key) <= maxBytes {
		return append([]byte{formBytes}, key...)
	}
	sum := sha256.Sum256([]byte(key))
	return append([]byte{formHash}, sum[:]...)
}

// Derive returns the stored key of a message that has the stored key of another message, but its
// own fingerprint.
func Derive(stored []byte, fingerprint [32]byte) []byte {
	h := sha256.New()
	h.Write(stored)
	h.Write(fingerprint[:])
	return h.Sum([]byte{formDerived})
}

// Keyless returns the stored key of a message without a key. Only where there is no UUID either,
// metadata tells it from others.
func Keyless(uuid string, payload, metadata []byte) []byte {
	print := sha256.Sum256(payload)
	if uuid == "" {
		print = sha256.Sum256(append(print[:], metadata...))
	}
	h := sha256.New()
	h.Write(print[:])
	h.Write([]byte(uuid))
	return h.Sum([]byte{formKeyless})
}

// IsKeyless reports whether [Keyless] made stored.
func IsKeyless(stored []byte) bool { return len(stored) > 0 && stored[0] == formKeyless }

// Join makes one key from parts, each prefixed with its length, so that different lists of parts
// give different keys.
func Join(parts ...string) string {
	var b []byte
	for _, p := range parts {
		b = binary.AppendUvarint(b, uint64(len(p)))
		b = append(b, p...)
	}
	return string(b)
}

// String shows a stored key to a person: the key itself if it was stored whole.
func String(stored []byte) string {
	if len(stored) == 0 {
		return ""
	}
	rest := stored[1:]
	switch {
	case stored[0] == formUUID && len(rest) == 16:
		s := hex.EncodeToString(rest)
		return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
	case stored[0] == formBytes:
		return string(rest)
	case stored[0] == formDerived:
		return "collision:" + hex.EncodeToString(rest)
	case stored[0] == formKeyless:
		return "keyless:" + hex.EncodeToString(rest)
	default:
		return "sha256:" + hex.EncodeToString(rest)
	}
}

// Parse returns the stored keys that [String] may have shown as shown, the likeliest first: shown
// may be a key, or stand for a collision, a long key or a message without a key.
func Parse(shown string) [][]byte {
	stored := [][]byte{Encode(shown)}
	for prefix, form := range map[string]byte{"collision:": formDerived, "sha256:": formHash, "keyless:": formKeyless} {
		rest, found := strings.CutPrefix(shown, prefix)
		if sum, err := hex.DecodeString(rest); found && err == nil && len(sum) == sha256.Size {
			stored = append(stored, append([]byte{form}, sum...))
		}
	}
	return stored
}

// uuid packs a UUID in canonical form. Any other spelling is another key and stays as it is.
func uuid(key string) ([]byte, bool) {
	if len(key) != 36 || key[8] != '-' || key[13] != '-' || key[18] != '-' || key[23] != '-' {
		return nil, false
	}
	out := make([]byte, 1, 17)
	out[0] = formUUID
	for i := 0; i < 36; {
		if key[i] == '-' && (i == 8 || i == 13 || i == 18 || i == 23) {
			i++
			continue
		}
		hi, lo := nibbles[key[i]], nibbles[key[i+1]]
		if hi|lo >= noNibble {
			return nil, false
		}
		out = append(out, hi<<4|lo)
		i += 2
	}
	return out, true
}

// nibbles holds the value of each lower-case hexadecimal digit, noNibble elsewhere. The digits of a
// UUID are random, so a processor cannot predict a branch on them.
var nibbles = func() (values [256]byte) {
	for c := range values {
		values[c] = noNibble
	}
	for value, c := range []byte("0123456789abcdef") {
		values[c] = byte(value)
	}
	return values
}()

const noNibble = 0x10
