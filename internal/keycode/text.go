package keycode

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escaped begins a key that a shell or a terminal would change, in the encoding of URL queries.
const escaped = "escaped:"

// Argument returns a key in a form that can be pasted after a command, and that [Read] reads.
func Argument(key string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" \t\"'`\\$&|;<>()*?[]#~!{}", r) }
	if key != "" && utf8.ValidString(key) && !strings.ContainsFunc(key, odd) && key[0] != '-' && !strings.HasPrefix(key, escaped) {
		return key
	}
	return escaped + url.QueryEscape(key)
}

// Text is [Argument] for keys that JSON or an argument cannot hold as they are.
func Text(key string) string {
	if utf8.ValidString(key) && !strings.ContainsRune(key, 0) && !strings.HasPrefix(key, escaped) {
		return key
	}
	return Argument(key)
}

// Read reads a key as [Argument] shows it, or as it is.
func Read(arg string) string {
	if text, found := strings.CutPrefix(arg, escaped); found {
		if key, err := url.QueryUnescape(text); err == nil {
			return key
		}
	}
	return arg
}
