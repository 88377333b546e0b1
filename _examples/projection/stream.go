package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/outbox"
)

const (
	versions = 20                     // of each account
	pace     = 2 * time.Millisecond   // between two changes
	late     = 60 * time.Millisecond  // at most, in a message's normal course
	repaired = 150 * time.Millisecond // after which what was lost is sent again
)

// stream is what a broker delivers on a bad day: a third of the messages twice, none in
// order, and one in fifty is lost, until its producer sends it again.
type stream struct {
	deliveries []delivery  // in the order of their times
	truth      map[int]int // the balance of each account, when all is posted
}

type delivery struct {
	at  time.Duration
	msg *message.Message
}

func newStream() *stream {
	s := &stream{truth: make(map[int]int)}
	for n := range accounts * versions {
		c := change{Account: n % accounts, Deposit: rand.IntN(1000), Percent: rand.IntN(5)}
		c.Balance = (s.truth[c.Account] + c.Deposit) * (100 + c.Percent) / 100
		s.truth[c.Account] = c.Balance
		msg := c.message(1 + n/accounts)

		at := time.Duration(n) * pace
		if rand.IntN(50) == 0 {
			at += repaired
		}
		for range 1 + rand.IntN(3)/2 {
			s.deliveries = append(s.deliveries, delivery{at + rand.N(late), msg})
		}
	}
	slices.SortFunc(s.deliveries, func(a, b delivery) int { return int(a.at - b.at) })
	return s
}

// message is c as its producer sends it, stamped with the version of the account that it
// brings. An outbox does the same by its Marshaler, or by Config.Stamp.
func (c change) message(version int) *message.Message {
	payload, _ := json.Marshal(c) // four numbers: cannot fail
	msg := message.NewMessage(watermill.NewUUID(), payload)
	outbox.Stamp(msg, fmt.Sprintf("account-%d", c.Account), int64(version))
	return msg
}

// send publishes each message at its time.
func (s *stream) send(ctx context.Context, to message.Publisher) error {
	began := time.Now()
	for _, d := range s.deliveries {
		select {
		case <-time.After(time.Until(began.Add(d.at))):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := to.Publish("changes", d.msg); err != nil {
			return err
		}
	}
	return nil
}
