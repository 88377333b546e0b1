package main

import (
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// outside is what no transaction reaches: a mail provider that fails at times, and knows
// keys, a cache, and the warehouse, which is given commands by the relay.
type outside struct {
	mu       sync.Mutex
	calls    int
	mails    map[string]bool // by key
	warmed   int
	commands map[string]bool // by id
}

func (o *outside) mail(msg *message.Message) ([]*message.Message, error) {
	if err := o.send(msg.UUID); err != nil {
		return nil, err
	}
	return write("notification-sender")(msg)
}

func (o *outside) send(key string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls++; o.calls%4 == 0 {
		return errors.New("the mail provider is busy")
	}
	o.mails[key] = true
	return nil
}

func (o *outside) warm(*message.Message) ([]*message.Message, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.warmed++
	return nil, nil
}

// Publish takes commands.
func (o *outside) Publish(_ string, msgs ...*message.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, msg := range msgs {
		o.commands[msg.UUID] = true
	}
	return nil
}

// Close does nothing.
func (o *outside) Close() error { return nil }

func (o *outside) done() (mails, warmed, commands int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mails), o.warmed, len(o.commands)
}
