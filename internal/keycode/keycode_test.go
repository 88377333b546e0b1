package keycode_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/keycode"
)

const id = "0c8d8e52-6f0b-4bd5-9c5e-3a1f0a2b4c6d"

func TestStringShowsWhatWasStored(t *testing.T) {
	long := strings.Repeat("x", keycode.MaxLen)
	for name, c := range map[string]struct {
		stored []byte
		want   string
	}{
		"a UUID":                {keycode.Encode(id), id},
		"a UUID in capitals":    {keycode.Encode(strings.ToUpper(id)), strings.ToUpper(id)},
		"text":                  {keycode.Encode("order-7"), "order-7"},
		"the longest kept":      {keycode.Encode(long[1:]), long[1:]},
		"bytes":                 {keycode.Encode("\x00\xff"), "\x00\xff"},
		"a hash":                {keycode.Encode(long), "sha256:"},
		"a collision":           {keycode.Derive(keycode.Encode(id), [32]byte{1}), "collision:"},
		"nothing":               {nil, ""},
		"a form alone":          {[]byte{2}, ""},
		"a UUID cut short":      {[]byte{1, 0xab}, "sha256:ab"},
		"a form of the future":  {[]byte{200, 0xab}, "sha256:ab"},
		"the key with no bytes": {keycode.Encode(""), ""},
	} {
		got := keycode.String(c.stored)
		if name == "a hash" || name == "a collision" {
			assert.Len(t, got, len(c.want)+64, name)
			got = got[:len(c.want)]
		}
		assert.Equal(t, c.want, got, name)
	}
}

func TestUUIDsTakeSixteenBytes(t *testing.T) {
	assert.Len(t, keycode.Encode(id), 17)
	assert.Len(t, keycode.Encode(strings.ToUpper(id)), 37, "another spelling is another key")
}

func TestDeriveDependsOnKeyAndFingerprint(t *testing.T) {
	seen := map[string]bool{}
	for _, key := range []string{id, "a", "b"} {
		for _, f := range [][32]byte{{}, {1}, {31: 1}} {
			stored := keycode.Derive(keycode.Encode(key), f)
			assert.LessOrEqual(t, len(stored), keycode.MaxLen)
			assert.False(t, seen[string(stored)])
			seen[string(stored)] = true
		}
	}
}

func FuzzEncode(f *testing.F) {
	long := strings.Repeat("x", keycode.MaxLen)
	seeds := []string{
		"", "a", id, strings.ToUpper(id), strings.ReplaceAll(id, "-", ""), id[:35] + "g", id[:35] + "-", id + "0",
		long[1:], long, long + "x", "\x01" + id[:16], "\x02a", "\xff\x00", string(keycode.Encode(id)),
		string(keycode.Encode(long)), keycode.Join("a", "b"),
	}
	for i, seed := range seeds {
		f.Add(seed, seeds[(i+1)%len(seeds)])
		f.Add(seed, string(keycode.Encode(seed)))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		stored, other := keycode.Encode(a), keycode.Encode(b)
		if len(stored) > keycode.MaxLen || len(stored) == 0 {
			t.Fatalf("%q is stored as %d bytes", a, len(stored))
		}
		if (a == b) != bytes.Equal(stored, other) {
			t.Fatalf("%q and %q are stored as %x and %x", a, b, stored, other)
		}
		if bytes.Equal(stored, keycode.Derive(other, [32]byte{})) {
			t.Fatalf("%q is stored as a collision of %q", a, b)
		}
		if shown := keycode.String(stored); len(a) < keycode.MaxLen && shown != a {
			t.Fatalf("%q is shown as %q", a, shown)
		}
	})
}

func FuzzString(f *testing.F) {
	f.Add([]byte{})
	for form := range byte(6) {
		f.Add([]byte{form})
		f.Add(append([]byte{form}, id[:16]...))
		f.Add(append([]byte{form}, id[:32]...))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		before := bytes.Clone(stored)
		shown := keycode.String(stored)
		if !bytes.Equal(before, stored) {
			t.Fatal("it changed what it was shown")
		}
		if len(stored) > 1 && shown == "" {
			t.Fatalf("%x is shown as nothing", stored)
		}
	})
}

// The input is two lists of parts, cut at the separator, which parts cannot contain.
func FuzzJoin(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""}, {"|", ""}, {"a|b", "ab"}, {"a|b", "a|b"}, {"a||b", "a|b|"}, {"\x01a", "a"}, {"\x01a|b", "a|\x01b"},
		{strings.Repeat("x", 127), strings.Repeat("x", 128)}, {strings.Repeat("x", 200) + "|y", "y"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		one, other := strings.Split(a, "|"), strings.Split(b, "|")
		if (a == b) != (keycode.Join(one...) == keycode.Join(other...)) {
			t.Fatalf("%q and %q are joined to %q and %q", one, other, keycode.Join(one...), keycode.Join(other...))
		}
		if a != "" && keycode.Join() == keycode.Join(one...) {
			t.Fatalf("%q is joined like nothing", one)
		}
	})
}
