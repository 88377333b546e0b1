package middleware

import (
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// handlers returns a function that finds the handler of a consumer, which of makes, by the router's name for it,
// which a middleware learns only from the first message. An error of of is final: it is for every message of that
// name.
func handlers(who string, of func(name string) (message.HandlerFunc, error)) func(name string) message.HandlerFunc {
	var known sync.Map
	return func(name string) message.HandlerFunc {
		if h, ok := known.Load(name); ok {
			return h.(message.HandlerFunc)
		}
		h, err := of(name)
		if err != nil {
			h = refused(who, err)
		}
		first, _ := known.LoadOrStore(name, h) // of several first messages at once
		return first.(message.HandlerFunc)
	}
}

// refused returns the handler of a consumer that cannot be.
func refused(who string, err error) message.HandlerFunc {
	refuse := inbox.Internals{}.Refuse(err)
	return func(msg *message.Message) ([]*message.Message, error) {
		_, err := refuse(msg)
		return nil, fmt.Errorf("%s: message %q: %w", who, msg.UUID, err)
	}
}
