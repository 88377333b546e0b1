package inbox

import "slices"

// kind is what made a key.
type kind int

const (
	byUUID kind = iota // the zero Key too
	byMetadata
	byCloudEvent
	byJSON
	byPayload
	byPosition
	byFunc
	joined
	firstOf
	withinTopic
	withinType
)

// has reports whether one of kinds made the key or a part of it.
func (k Key) has(kinds ...kind) bool {
	return slices.Contains(kinds, k.kind) || slices.ContainsFunc(k.parts, func(part Key) bool { return part.has(kinds...) })
}

// OfMessage reports whether the key is made of the message alone: not by a function of the
// service's own, nor of where the message was delivered.
func (k Key) OfMessage() bool { return !k.has(byFunc, byPosition, withinTopic) }

// ByPlace reports whether the key, or a part of it, is the message's place in a log, see [ByPosition]. A message that is
// sent to its topic again has another key then.
func (k Key) ByPlace() bool { return k.has(byPosition) }

// OfFields reports whether [ByMetadata] or [ByJSON] made the key.
func (k Key) OfFields() bool { return k.kind == byMetadata || k.kind == byJSON }

// Unqualified returns k without what [Key.WithinTopic] and [Key.WithinType] have added to it, and whether they did.
func (k Key) Unqualified() (inner Key, perTopic, perType bool) {
	for k.kind == withinTopic || k.kind == withinType {
		perTopic, perType = perTopic || k.kind == withinTopic, perType || k.kind == withinType
		k = k.parts[0]
	}
	return k, perTopic, perType
}
