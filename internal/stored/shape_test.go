package stored

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

func TestErrorsOfOneShape(t *testing.T) {
	for shape, errors := range map[string][]string{
		"account ? has ? EUR": {
			"account 7 has 12 EUR", "account 8812 has -3.50 EUR", `account "7" has 1,000.00 EUR`, "account 'ann' has 0x1F EUR",
			"account 6ba7b810-9dad-11d1-80b4-00c04fd430c8 has 1e6 EUR", "  account `x` has\t7 EUR\nand a stack trace\n  of 40 lines",
			"account 01ARZ3NDEKTSV4RRFFQ69G5FAV has 1 EUR", "account aWgEPTl1tmebfsQzFP4bxwgy80V has 1 EUR",
			`account "a \"b\" c" has ١٢ EUR`, "\n\naccount a3f9 has +1 EUR",
		},
		"dial tcp ?: connect: connection refused": {
			"dial tcp 10.0.0.1:5432: connect: connection refused", "dial tcp 127.0.0.1:33060: connect: connection refused",
		},
		"at ?: took ?":           {"at 2026-11-21T10:00:00Z: took 3.5s", "at 2025-01-02T23:59:59.123456+01:00: took 1m3.25s"},
		"can't do it, won't try": {"can't do it, won't try"},
		"order? failed":          {"order42 failed", "order7 failed"},
		"decode facade: EOF":     {"decode facade: EOF"},
		"bad byte ?":             {"bad byte \xff", "bad byte 7"},
		"":                       {"", "  \n\t\n"},
	} {
		for _, text := range errors {
			assert.Equal(t, shape, Shape(text), "%q", text)
			assert.Equal(t, Group([]byte(shape)), Group([]byte(text)), "%q", text)
		}
	}
	apart := []string{"not found", "not there", `no such table: "x"`, "timeout: no rows", "can't do it", "order? failed"}
	groups := make(map[int64]string)
	for _, text := range apart {
		group := Group([]byte(text))
		assert.True(t, group.Valid)
		assert.Positive(t, group.Int64)
		assert.Empty(t, groups[group.Int64], text)
		groups[group.Int64] = text
	}
	assert.False(t, Group(nil).Valid, "no error, no group")
}

func TestTheTailOfAnErrorDoesNotCount(t *testing.T) {
	begin := strings.Repeat("very long ", 20)
	assert.Equal(t, Group([]byte(begin+"tail")), Group([]byte(begin+"another end")))
	assert.Len(t, Shape(begin+"tail"), mostShape-1, "but for the space at its end")
	assert.True(t, utf8.ValidString(Shape(strings.Repeat("ü", 150))))
}

func FuzzShapeOf(f *testing.F) {
	for _, seed := range []string{
		"", "account 7", `"a" 'b' c`, "can't 'x' \x00 \xff", "1.2.3.4:5", "--1", "'\"'`", `"\`, strings.Repeat("é'", 200),
		strings.Repeat("0", 600) + "'", "?-?.?", "0\n'", "A0-'?'", "a? 7\u0085", "ⅷ x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shape := Shape(text)
		assert.Equal(t, shape, Shape(shape), "the shape of a shape is itself")
		assert.LessOrEqual(t, len(shape), mostShape)
		assert.True(t, utf8.ValidString(shape))
		assert.Equal(t, Group([]byte(text)), Group([]byte(shape)))
	})
}
