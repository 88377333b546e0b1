package payload

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/meaning"
)

// Keys gives an [AESGCM] its keys, of 16, 24 or 32 bytes, and their ids. It must be safe for
// concurrent use. [KeyRing] is one implementation; for one key per person write another. A panic in
// it is treated like one in the [Codec].
type Keys interface {
	// SealKey returns the key to seal a payload with, and its id of at most 255 bytes.
	SealKey(ctx context.Context, info Info) (id string, key []byte, err error)

	// OpenKey returns the key with this id, or inbox.ErrErased if the key was deleted.
	OpenKey(ctx context.Context, info Info, id string) (key []byte, err error)
}

// KeyRing holds a few keys by their ids. To rotate, add the new key in every process, then make it
// Current, and remove the old one when nothing is stored that was sealed with it.
type KeyRing struct {
	Current string            // the id of the key to seal with; an error if that key is empty
	Keys    map[string][]byte // an empty key stands for a deleted one
}

// SealKey returns the current key.
func (r KeyRing) SealKey(ctx context.Context, info Info) (id string, key []byte, err error) {
	if err := r.check(); err != nil { // not as an erased payload, which would be stored without its content
		return "", nil, err
	}
	key, err = r.OpenKey(ctx, info, r.Current)
	return r.Current, key, err
}

// check returns an error if the current key is empty, for instance because an environment variable is not set.
func (r KeyRing) check() error {
	if key, known := r.Keys[r.Current]; known && len(key) == 0 {
		return fmt.Errorf("the current key %q of the KeyRing is empty: a deleted key cannot be the current one", r.Current)
	}
	return nil
}

// OpenKey returns the key with this id.
func (r KeyRing) OpenKey(_ context.Context, _ Info, id string) ([]byte, error) {
	key, known := r.Keys[id]
	if !known {
		return nil, fmt.Errorf("the key %q is not in the KeyRing: put it back, or an empty one in its place "+
			"if it was deleted", id)
	}
	if len(key) == 0 {
		return nil, fmt.Errorf("key %q: %w", id, meaning.ErrErased)
	}
	return key, nil
}

// AESGCM is a [Codec] that encrypts with AES in Galois/Counter Mode. A sealed payload contains the
// id of its key, and can only be opened for the consumer, topic and UUID that it was sealed for. Do
// not seal more than 2^32 payloads with one key. It is safe for concurrent use.
type AESGCM struct{ keys Keys }

// NewAESGCM returns a codec with these keys. It refuses a [KeyRing] whose current key is empty.
func NewAESGCM(keys Keys) (*AESGCM, error) {
	if keys == nil {
		return nil, errors.New("payload: NewAESGCM needs keys")
	}
	if ring, is := keys.(interface{ check() error }); is {
		if err := ring.check(); err != nil {
			return nil, fmt.Errorf("payload: %w", err)
		}
	}
	return &AESGCM{keys: keys}, nil
}

// aesgcmVersion is the first byte of a sealed payload; the length of the id and the id follow.
const aesgcmVersion = 1

// Seal encrypts payload.
func (c *AESGCM) Seal(ctx context.Context, info Info, payload []byte) ([]byte, error) {
	id, key, err := c.keys.SealKey(ctx, info)
	if err != nil {
		return nil, fmt.Errorf("key to seal with: %w", err)
	}
	if len(id) > 255 {
		return nil, fmt.Errorf("the id of key %.20q… is longer than 255 bytes", id)
	}
	gcm, err := newGCM(id, key)
	if err != nil {
		return nil, err
	}
	head := append([]byte{aesgcmVersion, byte(len(id))}, id...)
	return gcm.Seal(head, nil, payload, boundTo(info, head)), nil
}

// Open decrypts what Seal returned. If that was changed since, or sealed for another message, the
// error is marked with inbox.Terminal.
func (c *AESGCM) Open(ctx context.Context, info Info, sealed []byte) ([]byte, error) {
	if len(sealed) < 2 || sealed[0] != aesgcmVersion || len(sealed) < 2+int(sealed[1]) {
		return nil, meaning.Terminal(errors.New("AESGCM did not seal these bytes"))
	}
	start := 2 + int(sealed[1])
	head, body := sealed[:start], sealed[start:]
	id := string(head[2:])
	key, err := c.keys.OpenKey(ctx, info, id)
	if err != nil {
		return nil, err
	}
	gcm, err := newGCM(id, key)
	if err != nil {
		return nil, err
	}
	payload, err := gcm.Open(nil, nil, body, boundTo(info, head))
	if err != nil {
		return nil, meaning.Terminal(fmt.Errorf("sealed with key %q: changed since, sealed for another message, "+
			"or with another key of that id: %w", id, err))
	}
	return payload, nil
}

func newGCM(id string, key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", id, err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// boundTo returns the additional data without which a sealed payload cannot be opened.
func boundTo(info Info, head []byte) []byte {
	b := append([]byte{}, head...)
	for _, part := range []string{info.Consumer, info.Topic, info.UUID} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return b
}
