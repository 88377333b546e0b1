// Package http has handlers that send requests.
package http

import (
	"context"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

func handle(msg *message.Message) error {
	if _, err := inbox.Tx(msg.Context()); err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(msg.Context(), http.MethodGet, "https://bank.example", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request) // want `an HTTP request in the transaction.*#a-slow-call-in-the-transaction`
	if err != nil {
		return err
	}
	if _, err := http.Get("https://bank.example"); err != nil { // want `an HTTP request`
		return err
	}
	_, err = inbox.Once(msg.Context(), "pay", func(ctx context.Context, id string) ([]byte, error) { // its result was stored before
		_, err := http.Get("https://bank.example")
		return nil, err
	})
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// before runs before the transaction.
func before(msg *message.Message) error {
	_, err := http.Get("https://bank.example")
	return err
}

var _ = inbox.Options{Before: before}
