package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/replay"
)

// dead reports whether the replay reads dead letters.
func (r *replaying) dead() bool { return r.from == "rabbitmq" || r.from == "sql" }

// runDead empties a dead-letter queue.
func (r *replaying) runDead(ctx context.Context, name string) error {
	spec := replay.Spec{Target: "outbox"}
	if r.into != "" {
		epoch, err := r.newest(ctx, r.into)
		if err != nil {
			return err
		}
		spec = replay.Spec{Target: "queue", Consumer: r.into, Epoch: epoch}
	}
	replayer, store, out, err := r.replayer(ctx)
	if err != nil {
		return err
	}
	to, err := r.replayTarget(ctx, store, out, spec)
	if err != nil {
		return err
	}
	if known, err := replayer.Status(ctx, name); err == nil { // if not, Drain says so
		if err := notOver(known); err != nil {
			return err
		}
	}
	if missing := r.by.missing(); missing != "" {
		return r.proposeDead(missing)
	}
	by, err := r.by.operator()
	if err != nil {
		return err
	}
	from, err := r.subscriber(ctx)
	if err != nil {
		return err
	}
	bar := r.progress("replay", admin.Count{})
	dead := replay.Dead{
		Name: name, From: from, To: to, By: by, Topic: r.queue, Limit: r.limit, Idle: r.idle, PerSecond: r.rate,
		IntoSideEffects: r.sideEffects, Progress: func(s replay.Status) { bar.at(s.Sent) },
	}
	if r.toTopic != "" {
		dead.TopicOf = func(*message.Message) (string, error) { return r.toTopic, nil }
	}
	status, err := replayer.Drain(ctx, dead)
	bar.end()
	return errors.Join(r.ended(status, err, r.why(status)), from.Close())
}

// why says why a replay is done.
func (r *replaying) why(s replay.Status) string {
	if r.limit > 0 && s.Sent >= r.limit {
		return fmt.Sprintf("; --limit %d is reached", r.limit)
	}
	return fmt.Sprintf("; then nothing came for %v", r.idle)
}

// proposeDead says what the replay would do. It cannot look into a queue without taking from it.
func (r *replaying) proposeDead(missing string) error {
	to := "the topics that they came from, through the outbox"
	switch {
	case r.into != "":
		to = "consumer " + r.into
	case r.toTopic != "":
		to = fmt.Sprintf("topic %q, through the outbox", r.toTopic)
	}
	shown := r.print(map[string]any{"would": "replay", "from": r.from, "queue": r.queue, "to": r.toTopic, "into": r.into}, func() string {
		return fmt.Sprintf("What %q of %s has would go to %s, and leave the queue.\n", r.queue, r.from, to)
	})
	r.unchanged("changed", missing)
	return errors.Join(shown, &silent{exitUsage})
}

var errNoAMQP = errors.New("which RabbitMQ? set MILLRACE_AMQP to its URL, such as amqp://user:password@host/")

// group is the consumer group that reads dead letters from a topic of watermill-sql, whatever the
// replay's name.
const group = "millrace replay"

// subscriber reads dead letters.
func (r *replaying) subscriber(ctx context.Context) (message.Subscriber, error) {
	if r.from == "sql" {
		db, err := r.connect(ctx, tuned)
		if err != nil {
			return nil, err
		}
		sub, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
			ConsumerGroup: group, Dialect: r.at.dialect, Logger: warnings{app: r.app},
		})
		if err != nil {
			return nil, &coded{exitUsage, err}
		}
		return sub, nil
	}
	uri := cmp.Or(r.amqp, r.env("MILLRACE_AMQP"))
	r.secrets.add(uri)
	if u, err := url.Parse(uri); err == nil {
		hide(u, r.secrets)
	}
	if uri == "" {
		return nil, &coded{exitUsage, errNoAMQP}
	}
	broker := rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{})
	broker.TopologyBuilder = asItIs{}
	return rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{Logger: warnings{app: r.app}})
}

// asItIs uses a queue as it is declared.
type asItIs struct{ amqp.DefaultTopologyBuilder }

// BuildTopology returns an error if the queue does not exist.
func (asItIs) BuildTopology(ch *amqp091.Channel, queue, _ string, _ amqp.Config, _ watermill.LoggerAdapter) error {
	if _, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
		return fmt.Errorf("the queue %q: %w", queue, err)
	}
	return nil
}
