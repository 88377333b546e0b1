package reserved

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Replay is the field that names the replay by which a message was sent again. The outbox
// keeps it: a replay may travel through one.
const Replay = "millrace_replay"

// ReplayAttempt is the field that counts how often a message was replayed.
const ReplayAttempt = "millrace_replay_attempt"

// Refused begins the reason of a message that is parked because it was replayed.
const Refused = "replayed by "

// PoisonedTopic is the field in which Watermill's PoisonQueue names the topic that the message came from.
const PoisonedTopic = "topic_poisoned"

// Poisoned are the fields by which Watermill's PoisonQueue tells of a failure. They say nothing of the message.
var Poisoned = []string{"reason_poisoned", PoisonedTopic, "handler_poisoned", "subscriber_poisoned"}

// Replayed returns a copy of md for a message that the replay of this name sends again: without what
// describes a delivery or a failure, and with how often it was sent again.
func Replayed(md message.Metadata, name string) message.Metadata {
	again := make(message.Metadata, len(md)+2)
	for name, value := range Strip(md) {
		again[name] = value
	}
	for _, name := range Poisoned {
		delete(again, name)
	}
	before, _ := strconv.Atoi(md[ReplayAttempt]) //nolint:errcheck // whatever else it was, is 0
	again[ReplayAttempt] = strconv.Itoa(max(before, 0) + 1)
	again[Replay] = name
	return again
}
