package payload_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
)

func randomKey(t *testing.T, size int) []byte {
	t.Helper()
	key := make([]byte, size)
	_, err := rand.Read(key)
	require.NoError(t, err)
	return key
}

func codec(t *testing.T, keys payload.Keys) *payload.AESGCM {
	t.Helper()
	c, err := payload.NewAESGCM(keys)
	require.NoError(t, err)
	return c
}

var whose = payload.Info{Consumer: "billing", Topic: "orders", UUID: "7"}

func TestAESGCMOpensWhatItSealed(t *testing.T) {
	for _, size := range []int{16, 24, 32} {
		for _, id := range []string{"", "2026-11", strings.Repeat("k", 255)} {
			c := codec(t, payload.KeyRing{Current: id, Keys: map[string][]byte{id: randomKey(t, size)}})
			for _, payload := range []string{"", "a", "a\x00b\xff", strings.Repeat("x", 1<<16)} {
				sealed, err := c.Seal(t.Context(), whose, []byte(payload))
				require.NoError(t, err)
				again, err := c.Seal(t.Context(), whose, []byte(payload))
				require.NoError(t, err)
				assert.NotEqual(t, sealed, again)
				assert.False(t, len(payload) > 1 && bytes.Contains(sealed, []byte(payload)))
				opened, err := c.Open(t.Context(), whose, sealed)
				require.NoError(t, err)
				assert.Equal(t, payload, string(opened))
			}
		}
	}
}

func TestAESGCMRotatesItsKeys(t *testing.T) {
	old, young := randomKey(t, 32), randomKey(t, 32)
	first := codec(t, payload.KeyRing{Current: "1", Keys: map[string][]byte{"1": old}})
	sealed, err := first.Seal(t.Context(), whose, []byte("secret"))
	require.NoError(t, err)

	both := codec(t, payload.KeyRing{Current: "2", Keys: map[string][]byte{"1": old, "2": young}})
	opened, err := both.Open(t.Context(), whose, sealed)
	require.NoError(t, err)
	assert.Equal(t, "secret", string(opened))
	sealed2, err := both.Seal(t.Context(), whose, []byte("secret"))
	require.NoError(t, err)

	_, err = first.Open(t.Context(), whose, sealed2)
	require.ErrorContains(t, err, `key "2" is not in the KeyRing`)
	assert.NotErrorIs(t, err, inbox.ErrErased)
	assert.False(t, inbox.IsTerminal(err))

	thrown := codec(t, payload.KeyRing{Current: "2", Keys: map[string][]byte{"1": nil, "2": young}})
	_, err = thrown.Open(t.Context(), whose, sealed)
	require.ErrorIs(t, err, inbox.ErrErased)
	opened, err = thrown.Open(t.Context(), whose, sealed2)
	require.NoError(t, err)
	assert.Equal(t, "secret", string(opened))
}

func TestAESGCMFindsWhatWasChanged(t *testing.T) {
	key := randomKey(t, 32)
	c := codec(t, payload.KeyRing{Current: "1", Keys: map[string][]byte{"1": key, "3": randomKey(t, 32)}})
	sealed, err := c.Seal(t.Context(), whose, []byte("secret"))
	require.NoError(t, err)
	terminal := func(info payload.Info, sealed []byte) {
		t.Helper()
		_, err := c.Open(t.Context(), info, sealed)
		assert.True(t, inbox.IsTerminal(err), "%v", err)
	}
	for i := range sealed {
		if i == 2 { // the id: another key
			continue
		}
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if i == 1 {
			continue // the length of the id: another id
		}
		terminal(whose, changed)
	}
	for i := range sealed {
		terminal(whose, sealed[:i])
	}
	for _, other := range []payload.Info{
		{Consumer: "x", Topic: "orders", UUID: "7"}, {Consumer: "billing", Topic: "x", UUID: "7"},
		{Consumer: "billing", Topic: "orders", UUID: "8"}, {Consumer: "billingo", Topic: "rders", UUID: "7"},
	} {
		terminal(other, sealed)
	}
	terminal(whose, append(bytes.Clone(sealed), 0))
	terminal(whose, []byte("plain text"))
}

func TestAESGCMRefusesBadKeys(t *testing.T) {
	_, err := payload.NewAESGCM(nil)
	require.ErrorContains(t, err, "needs keys")
	for id, key := range map[string][]byte{"short": make([]byte, 15), strings.Repeat("k", 256): make([]byte, 16)} {
		_, err := codec(t, payload.KeyRing{Current: id, Keys: map[string][]byte{id: key}}).Seal(t.Context(), whose, nil)
		require.Error(t, err)
	}
	_, err = codec(t, payload.KeyRing{}).Seal(t.Context(), whose, nil)
	require.ErrorContains(t, err, "key to seal with")
}

// TestAnEmptyCurrentKeyErasesNothing: inbox.ErrErased of Seal has a message stored without its payload.
func TestAnEmptyCurrentKeyErasesNothing(t *testing.T) {
	for name, key := range map[string][]byte{"nil": nil, "of a variable that is not set": []byte("")} {
		t.Run(name, func(t *testing.T) {
			ring := payload.KeyRing{Current: "2026", Keys: map[string][]byte{"2026": randomKey(t, 16)}}
			c := codec(t, ring)
			refuses := func(err error) {
				t.Helper()
				require.ErrorContains(t, err, `the current key "2026"`)
				require.NotErrorIs(t, err, inbox.ErrErased)
				require.False(t, inbox.IsTerminal(err))
			}
			ring.Keys["2026"] = key
			_, err := c.Seal(t.Context(), whose, []byte("secret"))
			refuses(err)
			_, err = payload.NewAESGCM(ring)
			refuses(err)
			_, err = payload.NewAESGCM(&ring)
			refuses(err)
		})
	}
}

func FuzzAESGCMOpen(f *testing.F) {
	c, err := payload.NewAESGCM(payload.KeyRing{Current: "1", Keys: map[string][]byte{"1": make([]byte, 16)}})
	require.NoError(f, err)
	sealed, err := c.Seal(f.Context(), whose, []byte("secret"))
	require.NoError(f, err)
	f.Add(sealed)
	f.Add([]byte{1, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if opened, err := c.Open(context.Background(), whose, b); err == nil {
			assert.Equal(t, "secret", string(opened))
		}
	})
}
