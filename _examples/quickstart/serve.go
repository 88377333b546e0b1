package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
)

// serve is the process that is killed: the service, with a gochannel that is filled from
// the standard input. It ends in good order when the input ends.
func serve(file string) error {
	db, err := open(file)
	if err != nil {
		return err
	}
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, store, err := newService(db, reporting{channel}, inbox.Config{Observers: []inbox.Observer{reporter}})
	if err != nil {
		return err
	}
	router.AddMiddleware(unlucky) // the last one added stands next to the handler
	go func() {
		<-router.Running()
		publish(channel)
		_ = router.Close() // Run returns, and says why
	}()
	err = router.Run(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(err, store.Close(ctx), db.Close())
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

func publish(to message.Publisher) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var d delivery
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			panic(err) // the broker is part of this program
		}
		msg := message.NewMessage(d.UUID, message.Payload(d.Payload))
		msg.Metadata.Set("number", strconv.Itoa(d.Number))
		if err := to.Publish("payments", msg); err != nil {
			panic(err)
		}
	}
}

// inFlight is how many messages the broker delivers without waiting for an ack.
const inFlight = 64

// reporting tells the broker which messages were delivered and acked.
type reporting struct{ message.Subscriber }

func (r reporting) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := r.Subscriber.Subscribe(ctx, topic)
	out := make(chan *message.Message)
	room := make(chan struct{}, inFlight)
	go func() {
		defer close(out)
		for msg := range in {
			room <- struct{}{}
			number := msg.Metadata.Get("number")
			fmt.Println("delivered", number)
			go func() {
				select {
				case <-msg.Acked():
					fmt.Println("acked", number)
				case <-msg.Nacked():
				}
				<-room
			}()
			out <- msg
		}
	}()
	return out, err
}

// reporter tells the broker what the inbox decided.
var reporter = inbox.On(func(_ context.Context, e inbox.Event) { fmt.Println(e.Kind) },
	inbox.KindCompleted, inbox.KindDuplicate, inbox.KindFailed)
