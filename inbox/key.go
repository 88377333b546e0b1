package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/keycode"
)

// Key says which deliveries are the same message. The zero value is [ByUUID].
//
// The description of the key is stored with the consumer. A service that starts with another key
// is refused, since its claims were recorded under the old one. To change the key, raise the
// consumer's Epoch.
type Key struct {
	source string
	own    bool // the message's own id, as opposed to a business key
	of     func(*message.Message) (string, error)
	form   form // builds it without a message
	kind   kind
	parts  []Key // the keys that it joins, chooses from or qualifies
}

// errNoKey is wrapped into errors about messages that have no key.
var errNoKey = errors.New("no key")

// ByUUID uses the message's UUID. Different messages never share one, unless a producer
// sends two messages with one UUID.
func ByUUID() Key {
	return Key{source: "uuid", own: true, form: leaf("uuid", text), of: func(msg *message.Message) (string, error) {
		if msg.UUID == "" {
			return "", fmt.Errorf("%w: the message has no UUID: set Key to something it does have, "+
				"such as inbox.ByMetadata", errNoKey)
		}
		return msg.UUID, nil
	}}
}

// ByMetadata uses a metadata field. Different messages with the same value are one message.
func ByMetadata(field string) Key {
	return Key{kind: byMetadata, source: "metadata:" + strconv.Quote(field), form: leaf(field, text), of: func(msg *message.Message) (string, error) {
		return metadata(msg, field)
	}}
}

// ByCloudEvent uses the source and the id of a CloudEvent, from the metadata fields
// ce_source and ce_id. CloudEvents requires the two together to be unique.
func ByCloudEvent() Key {
	both := join(leaf("ce_source", text), leaf("ce_id", text))
	return Key{kind: byCloudEvent, source: "cloudevent", own: true, form: both, of: func(msg *message.Message) (string, error) {
		source, err := metadata(msg, "ce_source")
		if err != nil {
			return "", err
		}
		id, err := metadata(msg, "ce_id")
		if err != nil {
			return "", err
		}
		return keycode.Join(source, id), nil
	}}
}

// ByJSON uses one or more fields of a JSON payload, each a path such as "order.id".
// Different messages with the same values are one message; 1 and "1" differ. A text that is no
// Unicode, as a payload in Latin-1 has it, is no key.
func ByJSON(paths ...string) Key {
	return Key{kind: byJSON, source: "json:" + quoted(paths), form: fields(paths), of: func(msg *message.Message) (string, error) {
		return jsonFields(msg.Payload, paths)
	}}
}

// ByPayload uses the SHA-256 of the payload. Different messages with equal payloads are
// one message: right for facts, wrong for commands such as "add one".
func ByPayload() Key {
	return Key{kind: byPayload, source: "payload", form: leaf("SHA-256 of the payload", digest), of: func(msg *message.Message) (string, error) {
		sum := sha256.Sum256(msg.Payload)
		return hex.EncodeToString(sum[:]), nil
	}}
}

// ByFunc uses the result of f, for instance one of Watermill's message hashers. Different
// messages with the same result are one message. The name is stored with the consumer:
// change it when you change what f does.
func ByFunc(name string, f func(*message.Message) (string, error)) Key {
	if f == nil { // else this would be the zero Key, which is ByUUID
		f = func(*message.Message) (string, error) { return "", errors.New("inbox.ByFunc was given no function") }
	}
	return Key{kind: byFunc, source: "func:" + strconv.Quote(name), form: leaf(name, anything), of: f}
}

// Joined uses all of keys together. A message must have every one of them.
func Joined(keys ...Key) Key {
	own := false
	parts := make([]form, 0, len(keys))
	for _, k := range keys {
		k = k.withDefault()
		own = own || k.own
		parts = append(parts, k.form)
	}
	return Key{kind: joined, parts: keys, source: "joined" + sources(keys), own: own, form: join(parts...), of: func(msg *message.Message) (string, error) {
		parts := make([]string, 0, len(keys))
		for _, k := range keys {
			part, err := k.value(msg)
			if err != nil {
				return "", err
			}
			parts = append(parts, part)
		}
		return keycode.Join(parts...), nil
	}}
}

// FirstOf uses the first of keys that the message has. The position of that key is part of the
// result, so equal values of two keys are two messages.
func FirstOf(keys ...Key) Key {
	own := len(keys) > 0
	for _, k := range keys {
		own = own && k.withDefault().own
	}
	return Key{kind: firstOf, parts: keys, source: "first" + sources(keys), own: own, of: func(msg *message.Message) (string, error) {
		var missing []error
		for i, k := range keys {
			value, err := k.value(msg)
			if err == nil {
				return keycode.Join(strconv.Itoa(i), value), nil
			}
			if !errors.Is(err, errNoKey) {
				return "", err
			}
			missing = append(missing, err)
		}
		return "", errors.Join(missing...)
	}}
}

// WithinTopic makes k count per topic: equal keys on two topics are two messages.
func (k Key) WithinTopic() Key {
	return k.within(withinTopic, "topic", subscribed)
}

// WithinType makes k count per event type: equal keys of two types are two messages.
// The type is the metadata field name of Watermill's CQRS, else ce_type.
func (k Key) WithinType() Key {
	return k.within(withinType, "type", eventType)
}

func (k Key) within(kind kind, what string, of func(*message.Message) string) Key {
	inner := k.withDefault()
	whole := join(leaf(what, text), inner.form)
	source := inner.source + "/" + what
	return Key{kind: kind, parts: []Key{inner}, source: source, own: inner.own, form: whole, of: func(msg *message.Message) (string, error) {
		value, err := inner.value(msg)
		if err != nil {
			return "", err
		}
		qualifier := of(msg)
		if qualifier == "" {
			return "", fmt.Errorf("%w: the message has no %s to qualify its key with", errNoKey, what)
		}
		return keycode.Join(qualifier, value), nil
	}}
}

// String describes k as it is stored with the consumer.
func (k Key) String() string { return k.withDefault().source }

// Of returns the key of msg, or an error that says what msg lacks.
func (k Key) Of(msg *message.Message) (string, error) { return k.value(msg) }

func (k Key) withDefault() Key {
	if k.of == nil {
		return ByUUID()
	}
	return k
}

// find returns the key of msg. It returns a panic of a user's function as an error.
func (k Key) find(msg *message.Message) (value string, err error) {
	k = k.withDefault()
	defer recovered(k.source, &err)
	value, err = k.value(msg)
	return value, sound(err)
}

func (k Key) value(msg *message.Message) (string, error) {
	k = k.withDefault()
	value, err := k.of(msg)
	if err == nil && value == "" {
		return "", fmt.Errorf("%w: %s is empty", errNoKey, k.source)
	}
	return value, err
}

func metadata(msg *message.Message, field string) (string, error) {
	if value := msg.Metadata[field]; value != "" {
		return value, nil
	}
	return "", fmt.Errorf("%w: the metadata has no %q", errNoKey, field)
}

func jsonFields(payload []byte, paths []string) (string, error) {
	if len(paths) == 0 {
		return "", fmt.Errorf("%w: inbox.ByJSON names no field", errNoKey)
	}
	root, err := decodeJSON(payload)
	switch {
	case errors.Is(err, errSeveral): // another key of FirstOf would be one that an earlier release did not take
		return "", err
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNoKey, err)
	}
	parts := make([]string, 0, len(paths))
	for _, path := range paths {
		switch v := jsonField(root, path).(type) {
		case string:
			if garbled(v, payload) {
				return "", fmt.Errorf("the text at %q has a character that is no Unicode", path)
			}
			parts = append(parts, "s"+v)
		case json.Number:
			parts = append(parts, "n"+v.String())
		case bool:
			parts = append(parts, "b"+strconv.FormatBool(v))
		default:
			return "", fmt.Errorf("%w: the JSON payload has no text, number or boolean at %q", errNoKey, path)
		}
	}
	return keycode.Join(parts...), nil
}

func quoted(list []string) string {
	all := make([]string, 0, len(list))
	for _, s := range list {
		all = append(all, strconv.Quote(s))
	}
	return strings.Join(all, ",")
}

func sources(keys []Key) string {
	all := make([]string, 0, len(keys))
	for _, k := range keys {
		all = append(all, k.withDefault().source)
	}
	return "(" + strings.Join(all, ",") + ")"
}

type topicKey struct{}

// topicOf returns the topic that a message came from: from the router, or before the router from
// the queue.
func topicOf(ctx context.Context) string {
	if topic := message.SubscribeTopicFromCtx(ctx); topic != "" {
		return topic
	}
	topic, _ := ctx.Value(topicKey{}).(string)
	return topic
}

// valueFrom returns the key of a message that came from topic and has not reached the router.
//
//nolint:contextcheck // the message has its own
func (k Key) valueFrom(topic string, msg *message.Message) (string, error) {
	ctx := msg.Context()
	defer msg.SetContext(ctx)
	msg.SetContext(context.WithValue(ctx, topicKey{}, topic))
	return k.find(msg)
}
