package pubsub

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/inbox"
)

// ClassifyCQRS marks what no retry mends in Watermill's package cqrs with [inbox.Terminal]:
// a type that no handler of the processor knows, then with [inbox.ErrUnknownType], and a payload that is not JSON or Protobuf
// of that type. It is a [Durable.Classify]. Errors of a handler that decodes JSON itself
// look the same; give it a Classify of its own.
func ClassifyCQRS(err error) error {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &mismatch) {
		return inbox.Terminal(err)
	}
	switch {
	case begins(err, "received unexpected event type ", "no handler found for event "): // of the processors
		return inbox.Terminal(fmt.Errorf("%w: %w", inbox.ErrUnknownType, err))
	case begins(err, "proto: ", "proto:\u00a0"):
		return inbox.Terminal(err)
	}
	return err
}

// begins reports whether err, or what it wraps, begins with one of texts.
func begins(err error, texts ...string) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		for _, text := range texts {
			if strings.HasPrefix(e.Error(), text) {
				return true
			}
		}
	}
	return false
}
