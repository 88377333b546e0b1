package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// serve is the process that is killed: the bank. It ends in good order when ctx does.
func serve(ctx context.Context, dsn, name string) error {
	d, err := openDatabases(dsn, name)
	if err != nil {
		return err
	}
	b, err := newBank(d.accounts, d.topics, inbox.Config{Observers: []inbox.Observer{reporter}})
	if err != nil {
		return err
	}
	b.router.AddMiddleware(unlucky) // the last one added stands next to the handler
	return errors.Join(b.run(ctx), d.close())
}

// unlucky lets one run in ten fail after the handler has done its work.
func unlucky(handler message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := handler(msg)
		if err == nil && rand.IntN(10) == 0 {
			err = errors.New("out of luck")
		}
		return produced, err
	}
}

// reporter tells the parent process what the inbox decides, one word a line.
var reporter = inbox.On(func(_ context.Context, e inbox.Event) { fmt.Println(e.Kind) },
	inbox.KindCompleted, inbox.KindDuplicate, inbox.KindFailed)
