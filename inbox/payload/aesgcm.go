package payload

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/inbox"
)

// Keys gives an [AESGCM] its keys, of 16, 24 or 32 bytes, which it knows by their ids. It
// must be safe for concurrent use. [KeyRing] is one; for one key per person write another. A panic is
// one of the [inbox.PayloadCodec].
type Keys interface {
	// SealKey returns the key to seal a payload with, and its id of at most 255 bytes.
	SealKey(ctx context.Context, info inbox.PayloadInfo) (id string, key []byte, err error)

	// OpenKey returns the key with this id, and inbox.ErrErased once it was thrown away.
	OpenKey(ctx context.Context, info inbox.PayloadInfo, id string) (key []byte, err error)
}

// KeyRing is a few keys by their ids. To rotate, add a key everywhere, then make it the
// current one, and leave the old one in until nothing is stored that was sealed with it.
type KeyRing struct {
	Current string            // the id of the key to seal with
	Keys    map[string][]byte // an empty key stands for one that was thrown away
}

// SealKey returns the current key.
func (r KeyRing) SealKey(ctx context.Context, info inbox.PayloadInfo) (id string, key []byte, err error) {
	key, err = r.OpenKey(ctx, info, r.Current)
	return r.Current, key, err
}

// OpenKey returns the key with this id.
func (r KeyRing) OpenKey(_ context.Context, _ inbox.PayloadInfo, id string) ([]byte, error) {
	key, known := r.Keys[id]
	if !known {
		return nil, fmt.Errorf("the key %q is not in the KeyRing: put it back, or an empty one in its place "+
			"if it was thrown away", id)
	}
	if len(key) == 0 {
		return nil, fmt.Errorf("key %q: %w", id, inbox.ErrErased)
	}
	return key, nil
}

// AESGCM is a [inbox.PayloadCodec] that encrypts with AES in Galois/Counter Mode. A sealed payload
// bears the id of its key, and can only be opened for the consumer, topic and UUID that it
// was sealed for. Seal no more than 2^32 payloads with one key. It is safe for concurrent use.
type AESGCM struct{ keys Keys }

// NewAESGCM returns a codec with these keys.
func NewAESGCM(keys Keys) (*AESGCM, error) {
	if keys == nil {
		return nil, errors.New("payload: NewAESGCM needs keys")
	}
	return &AESGCM{keys: keys}, nil
}

// aesgcmVersion is what a sealed payload begins with, before the length of the id and the id.
const aesgcmVersion = 1

// Seal encrypts payload.
func (c *AESGCM) Seal(ctx context.Context, info inbox.PayloadInfo, payload []byte) ([]byte, error) {
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

// Open decrypts what Seal returned. Where that was changed, or was sealed for another
// message, the error is marked with [inbox.Terminal].
func (c *AESGCM) Open(ctx context.Context, info inbox.PayloadInfo, sealed []byte) ([]byte, error) {
	if len(sealed) < 2 || sealed[0] != aesgcmVersion || len(sealed) < 2+int(sealed[1]) {
		return nil, inbox.Terminal(errors.New("these are no bytes that AESGCM has sealed"))
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
		return nil, inbox.Terminal(fmt.Errorf("sealed with key %q: changed since, sealed for another message, "+
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

// boundTo is what a sealed payload cannot be opened without.
func boundTo(info inbox.PayloadInfo, head []byte) []byte {
	b := append([]byte{}, head...)
	for _, part := range []string{info.Consumer, info.Topic, info.UUID} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return b
}
