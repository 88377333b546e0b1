package pubsub

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/millrace-go/millrace/inbox"
)

// ClassifyCQRS marks what no retry mends in Watermill's package cqrs with [inbox.Terminal]:
// a type that no handler of the processor knows, and a payload that is not JSON or Protobuf
// of that type. It is a [Durable.Classify]. Errors of a handler that decodes JSON itself
// look the same; give it a Classify of its own.
func ClassifyCQRS(err error) error {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &mismatch) {
		return inbox.Terminal(err)
	}
	for _, text := range []string{
		"received unexpected event type ", "no handler found for event ", // of the processors
		"proto: ", "proto:\u00a0", // what Protobuf's errors begin with
	} {
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.HasPrefix(e.Error(), text) {
				return inbox.Terminal(err)
			}
		}
	}
	return err
}
