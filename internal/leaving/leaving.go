// Package leaving answers messages whose handler ends its goroutine.
package leaving

import "github.com/ThreeDotsLabs/watermill/message"

// Nack returns h, which nacks a message with which it ends its goroutine by runtime.Goexit, as t.FailNow does:
// no router answers it then, and its source would wait for ever. A panic goes on its way, with its stack.
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
