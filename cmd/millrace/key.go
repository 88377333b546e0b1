package main

import (
	"context"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// escaped begins a key that a shell or a terminal would change, in the encoding of URL queries.
const escaped = "escaped:"

// keyText returns a key in a form that can be pasted after a command, and that keyOf reads.
func keyText(key string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" \t\"'`\\$&|;<>()*?[]#~!{}", r) }
	if key != "" && utf8.ValidString(key) && !strings.ContainsFunc(key, odd) && key[0] != '-' && !strings.HasPrefix(key, escaped) {
		return key
	}
	return escaped + url.QueryEscape(key)
}

// jsonKey is keyText for keys that JSON or an argument cannot hold as they are.
func jsonKey(key string) string {
	if utf8.ValidString(key) && !strings.ContainsRune(key, 0) && !strings.HasPrefix(key, escaped) {
		return key
	}
	return keyText(key)
}

// keyOf reads a key as keyText shows it, or as it is.
func keyOf(arg string) string {
	if text, found := strings.CutPrefix(arg, escaped); found {
		if key, err := url.QueryUnescape(text); err == nil {
			return key
		}
	}
	return arg
}

// row returns the open message of a row.
func (a *app) row(ctx context.Context, store *inbox.Store, id int64) (admin.Message, error) {
	m, err := admin.New(store).Message(ctx, id)
	if exitCode(err) == exitNotFound {
		err = notFoundf("there is no open message with the row id %d: it was handled or discarded, or --namespace is not right", id)
	}
	return m, err
}
