package inbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"google.golang.org/protobuf/encoding/protowire"
)

// Two errors of Watermill's package cqrs say that no retry can help: the message's type has no
// handler, or its payload cannot be decoded as that type. The second looks like the error of a
// handler that decodes something else, such as an HTTP response, and that may succeed the next
// time. So the payload itself must reproduce the error: cqrs decodes it before the handler runs,
// and would have failed there.

// undecodable marks err if the payload of msg provably caused it.
func undecodable(msg *message.Message, err error) error {
	name := msg.Metadata.Get("name") // every marshaler of cqrs puts the type here
	if name == "" || len(msg.Payload) == 0 {
		return err
	}
	name = name[strings.LastIndexByte(name, '.')+1:]
	same := false
	switch e := err.(type) { //nolint:errorlint // cqrs wraps nothing
	case *json.SyntaxError:
		same = sameSyntax(msg.Payload, e)
	case *json.UnmarshalTypeError:
		same = sameMismatch(msg.Payload, name, e)
	default:
		same = says(err, "proto: cannot parse invalid wire-format", "proto:\u00a0cannot parse invalid wire-format") &&
			!json.Valid(msg.Payload) && !wellFormed(msg.Payload)
	}
	if same {
		return &undecodableError{err}
	}
	return err
}

type undecodableError struct{ error }

func (e *undecodableError) Unwrap() error { return e.error }

func sameSyntax(payload []byte, err *json.SyntaxError) bool {
	var own *json.SyntaxError
	return errors.As(json.Unmarshal(payload, new(any)), &own) && *own == *err
}

// sameMismatch reports whether err is about the type called name and about a value that payload has
// at that place. Below the fields of the type, an error does not say to which type it belongs.
func sameMismatch(payload []byte, name string, err *json.UnmarshalTypeError) bool {
	if err.Field == "" {
		return err.Type != nil && err.Type.Name() == name && isCalled(payload, err.Value)
	}
	var fields map[string]json.RawMessage
	return err.Struct == name && json.Unmarshal(payload, &fields) == nil && isCalled(fields[err.Field], err.Value)
}

// isCalled reports whether an error calls value by name: its kind and, for a number that does not
// fit, its digits.
func isCalled(value []byte, name string) bool {
	value = bytes.TrimSpace(value)
	kind, digits, exact := strings.Cut(name, " ")
	return kindOf(value) == kind && (!exact || digits == string(value))
}

// kindOf returns how an error names the kind of value.
func kindOf(value []byte) string {
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "bool"
	case 'n':
		return "null"
	}
	return "number"
}

// wellFormed reports whether payload is a sequence of Protobuf fields.
func wellFormed(payload []byte) bool {
	for len(payload) > 0 {
		_, _, n := protowire.ConsumeField(payload)
		if n < 0 {
			return false
		}
		payload = payload[n:]
	}
	return true
}

// foreseen marks an error of Watermill's package cqrs with [Terminal] if no retry can help.
func foreseen(err error) error {
	var undecodable *undecodableError
	switch {
	case IsTerminal(err):
		return err
	case says(err, "received unexpected event type ", "no handler found for event "): // event processors say this
		return Terminal(fmt.Errorf("%w: %w", ErrUnknownType, err))
	case errors.As(err, &undecodable):
		return Terminal(err)
	}
	return err
}

// says reports whether the text of err, or of what it wraps, begins with one of texts.
func says(err error, texts ...string) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		for _, text := range texts {
			if strings.HasPrefix(e.Error(), text) {
				return true
			}
		}
	}
	return false
}
