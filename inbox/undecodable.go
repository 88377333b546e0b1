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
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax) && sameSyntax(msg.Payload, syntax),
		errors.As(err, &mismatch) && sameMismatch(msg.Payload, name, mismatch),
		says(err, "proto: ", "proto:\u00a0") && !json.Valid(msg.Payload) && !wellFormed(msg.Payload):
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
		return err.Type != nil && err.Type.Name() == name && kindOf(payload) == kindWord(err.Value)
	}
	var fields map[string]json.RawMessage
	return err.Struct == name && json.Unmarshal(payload, &fields) == nil && kindOf(fields[err.Field]) == kindWord(err.Value)
}

// kindWord is the first word of what an error calls a value: "number 1.5".
func kindWord(value string) string {
	kind, _, _ := strings.Cut(value, " ")
	return kind
}

// kindOf returns what an error would call a value.
func kindOf(value []byte) string {
	value = bytes.TrimLeft(value, " \t\r\n")
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
