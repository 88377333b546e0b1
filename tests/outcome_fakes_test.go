package tests_test

import (
	"context"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/tests/rig"
)

// lockedAway is a codec whose key is out of reach.
type lockedAway struct{}

func (lockedAway) Seal(_ context.Context, _ payload.Info, plain []byte) ([]byte, error) {
	return plain, nil
}

func (lockedAway) Open(context.Context, payload.Info, []byte) ([]byte, error) { return nil, errBoom }

// slowKeys is a codec whose key service answers nothing while it is away.
type slowKeys struct {
	lockedAway
	away atomic.Bool
}

func (k *slowKeys) Open(ctx context.Context, _ payload.Info, sealed []byte) ([]byte, error) {
	if k.away.Load() {
		<-ctx.Done()
	}
	return sealed, ctx.Err()
}

// outbox is a publisher that writes into the transaction of each message's context.
type outbox struct{ fail error }

func (o *outbox) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if err := rig.Exec(m.Context(), `INSERT INTO box (topic, uuid) VALUES (?, ?)`, topic, m.UUID); err != nil {
			return err
		}
	}
	return o.fail
}

func (*outbox) Close() error { return nil }

// heeding is a publisher that sends nothing once the context of a message has ended, as that of watermill-redisstream.
type heeding struct {
	rig.Publisher
	contexts []context.Context //nolint:containedctx // of what was published
}

func (h *heeding) Publish(_ string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if err := m.Context().Err(); err != nil {
			return err
		}
		h.contexts = append(h.contexts, m.Context())
	}
	return nil
}

// deaf is a publisher that fails for some topics, and tells of each call first.
type deaf struct {
	fails func(topic string) bool
	call  func()
	tried int
}

func (d *deaf) Publish(topic string, _ ...*message.Message) error {
	d.tried++
	if d.call != nil {
		d.call()
	}
	if d.fails(topic) {
		return errBoom
	}
	return nil
}

func (*deaf) Close() error { return nil }
