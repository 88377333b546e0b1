package inbox

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/keycode"
)

// sayDecided tells of what an operator did; the audit table keeps it.
func (s *Store) sayDecided(by Operator, action string, about watermill.LogFields) {
	s.log.Info("inbox: an operator decided", about.Add(watermill.LogFields{
		"operator": by.Name, "action": action, "reason": by.Reason,
	}))
}

// fields are what a log line says of a message that an operator decides about.
func (r messageRow) fields() watermill.LogFields {
	return Event{
		Consumer: string(r.Name), Epoch: r.Epoch, MessageID: keycode.String(r.MessageID), UUID: string(r.UUID),
		Topic: string(r.Topic), Attempt: r.Attempts,
	}.fields()
}

// fields are what a log line says of a queue.
func (q *Queue) fields() watermill.LogFields {
	return watermill.LogFields{"consumer": q.name.name, "epoch": q.name.epoch}
}

// fields are what a log line says of the event: as much as docs/logs.md promises, and nothing
// of metadata and payload.
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
