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

// What Watermill's package cqrs says of a message that no attempt mends: its type has no handler, or its
// payload is none of that type. The latter reads like the error of a handler that decodes something
// else, an answer over HTTP for instance, and that one may well succeed the next time. So the payload
// itself has to show the error: cqrs decodes it before the handler has it, and would have failed there.

// undecodable marks err where the payload of msg provably is what cannot be decoded.
func undecodable(msg *message.Message, err error) error {
	name := msg.Metadata.Get("name") // of the type, by every marshaler of cqrs
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

// sameMismatch reports whether err is about the type called name, and about a value that payload has there.
// Deeper than in its fields an error does not say to which type it belongs.
func sameMismatch(payload []byte, name string, err *json.UnmarshalTypeError) bool {
	if err.Field == "" {
		return err.Type != nil && err.Type.Name() == name && isCalled(payload, err.Value)
	}
	var fields map[string]json.RawMessage
	return err.Struct == name && json.Unmarshal(payload, &fields) == nil && isCalled(fields[err.Field], err.Value)
}

// isCalled reports whether an error calls a value so: by its kind, and a number that does not fit by its digits, too.
func isCalled(value []byte, what string) bool {
	value = bytes.TrimSpace(value)
	kind, digits, exact := strings.Cut(what, " ")
	return kindOf(value) == kind && (!exact || digits == string(value))
}

// kindOf returns what an error would call a value.
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

// wellFormed reports whether payload is a sequence of Protobuf's fields.
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

// foreseen marks with [Terminal] what Watermill's package cqrs says, and no other attempt would end differently.
func foreseen(err error) error {
	var undecodable *undecodableError
	switch {
	case IsTerminal(err):
		return err
	case says(err, "received unexpected event type ", "no handler found for event "): // of the processors
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
