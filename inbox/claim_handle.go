package inbox

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/stack"
)

// Handler returns h as the handler of the consumer that config names: each message is claimed in a
// transaction, in which h runs, and which is committed if h succeeds. middleware.Inbox calls it.
// Handler returns an error if a handler of another name, config.Handler, has the consumer: the two
// would take each other's messages for duplicates.
func (s *Store) Handler(config ConsumerConfig, h message.HandlerFunc) (message.HandlerFunc, error) {
	c, err := s.consumer(config)
	if err != nil {
		return nil, err
	}
	return func(msg *message.Message) ([]*message.Message, error) { return c.handle(msg, h) }, nil
}

// handle runs h for one delivery, as often as the version gate wants it tried. It restores the
// message's context on every exit: middlewares further in leave cancelled ones behind.
func (c *claimConsumer) handle(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	return c.handleOn(&visit{}, msg, h)
}

func (c *claimConsumer) handleOn(v *visit, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	stack.Grow()
	ctx := msg.Context()
	defer msg.SetContext(ctx)

	if leasedOf(ctx) == nil {
		c.early.enter()
		defer c.early.exit()
	}
	cl, err := c.claim(msg, v)
	for err == nil && cl.fresh {
		produced, failure := cl.run(h)
		if !cl.Postponed() {
			return produced, failure
		}
		msg.SetContext(ctx)
		cl, err = cl.Again()
	}
	if err != nil {
		return nil, err
	}
	return cl.outcome, nil
}

// run runs h in the transaction of the claim.
func (cl *claim) run(h message.HandlerFunc) ([]*message.Message, error) {
	// If h panics, Abandon rolls back; the panic goes on with its stack.
	defer cl.Abandon()
	cl.msg.SetContext(cl.handler)
	produced, err := h(cl.msg)
	if err != nil {
		return nil, cl.Rollback(err)
	}
	return cl.Commit(produced)
}
