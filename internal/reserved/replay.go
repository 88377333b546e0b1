package reserved

import (
	"math"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Replay is the field that names the replay that sent a message. The outbox keeps the field,
// because a replay may go through an outbox.
const Replay = "millrace_replay"

// ReplayAttempt is the field that counts how often a message was replayed.
const ReplayAttempt = "millrace_replay_attempt"

// Refused is the prefix of the reason of a message that is parked because it was replayed.
const Refused = "replayed by "

// PoisonedTopic is the field in which Watermill's PoisonQueue stores the topic of the message.
const PoisonedTopic = "topic_poisoned"

// Poisoned are the fields in which Watermill's PoisonQueue describes a failure. They do not belong
// to the message.
var Poisoned = []string{"reason_poisoned", PoisonedTopic, "handler_poisoned", "subscriber_poisoned"}

// Replayed returns a copy of md for a message that the replay called name sends: without fields
// that describe a delivery or a failure, and with the number of the attempt.
func Replayed(md message.Metadata, name string) message.Metadata {
	again := make(message.Metadata, len(md)+2)
	for name, value := range Strip(md) {
		again[name] = value
	}
	for _, name := range Poisoned {
		delete(again, name)
	}
	before, _ := strconv.Atoi(md[ReplayAttempt]) //nolint:errcheck // whatever else it was, is 0, and what is too large the largest
	again[ReplayAttempt] = strconv.Itoa(min(max(before, 0), math.MaxInt-1) + 1)
	again[Replay] = name
	return again
}
