package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

// handled runs h behind an inbox on a message.
func (t *Trial) handled(ctx context.Context, uuid string, h message.NoPublishHandlerFunc) error {
	store, err := t.store(0)
	if err != nil {
		return err
	}
	msg := message.NewMessage(uuid, []byte(uuid))
	msg.SetContext(ctx)
	//nolint:contextcheck // the message has it
	_, err = middleware.Inbox{Store: store, Consumer: "try", Timeout: t.Patience}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) })(msg)
	return errors.Join(err, store.Close(ctx))
}

// inboxWorks: a message that is delivered twice is handled once, and its claim can be purged.
func inboxWorks(ctx context.Context, t *Trial) (string, error) {
	runs := 0
	for range 2 {
		if err := t.handled(ctx, "twice", func(*message.Message) error { runs++; return nil }); err != nil {
			return refused(err)
		}
	}
	if runs != 1 {
		return fmt.Sprintf("a message that was delivered twice is handled %d times", runs), nil
	}
	store, err := t.store(0)
	if err != nil {
		return "", err
	}
	if _, err := store.Purge(ctx); err != nil {
		return refused(err)
	}
	return "", store.Close(ctx)
}

// failuresAreNoticed: a handler that hides a failed statement is not reported as successful.
func failuresAreNoticed(ctx context.Context, t *Trial) (string, error) {
	runs := 0
	failing := func(msg *message.Message) error { //nolint:contextcheck // the message has it
		runs++
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		_, _ = tx.ExecContext(msg.Context(), `INSERT INTO `+t.prefix+`nowhere (id) VALUES (1)`) // hidden on purpose
		return nil
	}
	err := t.handled(ctx, "hidden", failing)
	switch {
	case runs == 0:
		return "", err
	case err == nil:
		return "a transaction in which a statement failed is committed without an error", nil
	}
	if err := t.handled(ctx, "hidden", failing); runs == 1 {
		return fmt.Sprintf("a message whose transaction failed counts as handled (%v)", err), nil
	}
	return "", nil
}

// endsAreNoticed: in a transaction that has ended no message is stored, and its handler is not reported as successful.
func endsAreNoticed(ctx context.Context, t *Trial) (string, error) {
	out, err := outbox.NewPublisher(t.node(0).DB, outbox.Config{
		Dialect: t.Dialect, Schema: t.Schema, TablePrefix: t.prefix,
	})
	if err != nil {
		return "", err
	}
	var published error
	tried := false
	err = t.handled(ctx, "ended", func(msg *message.Message) error { //nolint:contextcheck // the message has it
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(msg.Context(), `ROLLBACK`); err != nil {
			return err
		}
		stored := message.NewMessage("ended", nil)
		stored.SetContext(msg.Context())
		published, tried = out.Publish("ended", stored), true
		return nil
	})
	switch {
	case !tried:
		return "", err
	case published == nil:
		return "a message is stored though the transaction of its handler has ended", nil
	case err == nil:
		return "a handler whose transaction has ended is reported as successful", nil
	}
	return "", nil
}

// sent notes what a relay sends.
type sent struct {
	mu   sync.Mutex
	keys map[string][]string
	all  chan struct{} // closed when enough was sent
	left int
}

func (s *sent) Publish(_ string, messages ...*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		key := m.Metadata.Get("key")
		s.keys[key] = append(s.keys[key], string(m.Payload))
		if s.left--; s.left == 0 {
			close(s.all)
		}
	}
	return nil
}

func (s *sent) Close() error { return nil }

// outboxWorks: a relay sends what was committed, in the order of each key.
func outboxWorks(ctx context.Context, t *Trial) (string, error) {
	const perKey = 5
	if _, err := t.node(0).ExecContext(ctx, `DELETE FROM `+t.table("outbox")); err != nil {
		return "", err // of other tries
	}
	s := &sent{keys: map[string][]string{}, all: make(chan struct{}), left: 2 * perKey}
	out, err := outbox.NewPublisher(t.node(0).DB, outbox.Config{
		Dialect: t.Dialect, Schema: t.Schema, TablePrefix: t.prefix, OrderKey: outbox.ByMetadata("key"),
	})
	if err != nil {
		return "", err
	}
	relay, err := outbox.NewRelay(t.node(1).DB, s, outbox.RelayConfig{
		Dialect: t.Dialect, Schema: t.Schema, TablePrefix: t.prefix, Logger: watermill.NopLogger{},
	})
	if err != nil {
		return "", err
	}
	for i := range perKey {
		err := outbox.InTx(ctx, t.node(0).DB, func(ctx context.Context, _ *sqlx.Tx) error {
			for _, key := range []string{"a", "b"} {
				m := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprint(i)))
				m.Metadata = message.Metadata{"key": key}
				m.SetContext(ctx)
				if err := out.Publish("tried", m); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return refused(err)
		}
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	found := ""
	select {
	case <-s.all:
	case err := <-ended:
		cancel()
		return fmt.Sprintf("the relay stops: %v", err), nil
	case <-time.After(2 * t.Patience):
		found = fmt.Sprintf("the relay has not sent what was stored after %v", 2*t.Patience)
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) && found == "" {
		found = fmt.Sprintf("the relay ends with an error: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, payloads := range s.keys {
		for i, p := range payloads {
			if found == "" && p != fmt.Sprint(i) {
				found = fmt.Sprintf("the messages of key %s are sent in the order %v", key, payloads)
			}
		}
	}
	return found, nil
}

// queueWorks: a message whose handler fails is tried again from the table.
func queueWorks(ctx context.Context, t *Trial) (string, error) {
	store, err := t.store(0)
	if err != nil {
		return "", err
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	sub, err := pubsub.Durable{
		Store: store, Consumer: "queue", Mode: pubsub.StoreFirst, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
	}.Decorate(broker)
	if err != nil {
		return "", err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: t.Patience}, watermill.NopLogger{}) //nolint:contextcheck // Run gets one
	if err != nil {
		return "", err
	}
	done := make(chan struct{})
	router.AddPlugin(store.Plugin()) //nolint:contextcheck // Run gets one
	router.AddMiddleware(middleware.Inbox{Store: store, Consumer: "queue", Timeout: t.Patience}.Middleware)
	router.AddConsumerHandler("queue", "tried", sub, func(msg *message.Message) error { //nolint:contextcheck // the message has it
		if inbox.Attempt(msg.Context()) == 1 {
			return errors.New("the first attempt fails")
		}
		close(done)
		return nil
	})
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(running) }()
	found := ""
	select {
	case <-router.Running():
		if err := broker.Publish("tried", message.NewMessage("queued", nil)); err != nil {
			return "", err
		}
		select {
		case <-done:
		case <-time.After(2 * t.Patience):
			found = fmt.Sprintf("a message that failed once is not tried again within %v", 2*t.Patience)
		}
	case err := <-ended:
		return fmt.Sprintf("the queue does not start: %v", err), nil
	}
	err = router.Close() //nolint:contextcheck // it takes none
	if err := errors.Join(err, <-ended, store.Close(ctx)); found == "" {
		return "", err
	}
	return found, nil
}
