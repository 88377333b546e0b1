package outbox

import "github.com/ThreeDotsLabs/watermill/message"

type confirming struct{}

func (confirming) Publish(string, ...*message.Message) error { return nil }
func (confirming) Close() error                              { return nil }
