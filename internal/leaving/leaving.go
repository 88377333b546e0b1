// Package leaving nacks messages whose handler ends its goroutine.
package leaving

import "github.com/ThreeDotsLabs/watermill/message"

// Nack returns h, but nacks the message if h ends its goroutine with runtime.Goexit, as t.FailNow
// does: no router would answer the message, and its source would wait for ever. Nack passes a panic
// on with its stack.
func Nack(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		returned := false
		defer func() {
			if returned {
				return
			}
			if r := recover(); r != nil {
				panic(r)
			}
			msg.Nack()
		}()
		produced, err := h(msg)
		returned = true
		return produced, err
	}
}
