package inbox

import "slices"

// kind is the function that made a key.
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

// OfMessage reports whether the key depends on the message alone: not on a function of the
// service, and not on where the message was delivered.
func (k Key) OfMessage() bool { return !k.has(byFunc, byPosition, withinTopic) }

// ByPlace reports whether [ByPosition] made the key or a part of it. A message that is sent to its topic
// again then has another key.
func (k Key) ByPlace() bool { return k.has(byPosition) }

// OfFields reports whether [ByMetadata] or [ByJSON] made the key.
func (k Key) OfFields() bool { return k.kind == byMetadata || k.kind == byJSON }

// Unqualified returns k as it was before [Key.WithinTopic] and [Key.WithinType], and whether they were applied.
func (k Key) Unqualified() (inner Key, perTopic, perType bool) {
	for k.kind == withinTopic || k.kind == withinType {
		perTopic, perType = perTopic || k.kind == withinTopic, perType || k.kind == withinType
		k = k.parts[0]
	}
	return k, perTopic, perType
}
