package inbox

import (
	"github.com/ThreeDotsLabs/watermill"
)

// fields returns the fields of a log line about a queue.
func (q *Queue) fields() watermill.LogFields {
	return watermill.LogFields{"consumer": q.name.Name, "epoch": q.name.Epoch}
}

// fields returns the fields of a log line about an event: those of docs/logs.md, and nothing of
// metadata and payload.
func (e Event) fields() watermill.LogFields {
	fields := make(watermill.LogFields, 8)
	say := func(name, value string) {
		if value != "" {
			fields[name] = value
		}
	}
	say("consumer", e.Consumer)
	say("message_id", e.MessageID)
	say("message_uuid", e.UUID)
	say("topic", e.Topic)
	say("reason", e.Reason)
	say("replay", e.Replay)
	if e.Consumer != "" {
		fields["epoch"] = e.Epoch
	}
	if e.Err != nil {
		fields["error"] = e.Err.Error()
	}
	if e.Count > 0 {
		fields["count"] = e.Count
	}
	if e.Attempt > 0 {
		fields["attempt"] = e.Attempt
	}
	return fields
}
