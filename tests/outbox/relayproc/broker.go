package relayproc

import (
	"errors"
	"net"
	"net/rpc"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
)

// Take is what a broker does with a message that a relay sends. An error refuses it.
type Take func(relay, topic string, msg *message.Message) error

// Broker serves relays in other processes until t ends, and returns its address, and how many relays have hung up: nothing
// more of what they sent is taken. A message is confirmed when take has returned; take may be called by several goroutines.
func Broker(t testing.TB, take Take) (addr string, hungUp *atomic.Int64) {
	t.Helper()
	hungUp = new(atomic.Int64)
	server := rpc.NewServer()
	require.NoError(t, server.RegisterName("Broker", &broker{take}))
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() }) // ends the loop
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				server.ServeConn(conn)
				hungUp.Add(1)
			}()
		}
	}()
	return listener.Addr().String(), hungUp
}

// Parcel is a message on its way to the broker.
type Parcel struct {
	Relay, Topic, UUID string
	Metadata           map[string]string
	Payload            []byte
}

// Receipt says what became of a parcel.
type Receipt struct {
	Refused   string // why; empty for a confirm
	Permanent bool
}

type broker struct{ take Take }

// Deliver takes a parcel.
func (b *broker) Deliver(p Parcel, r *Receipt) error {
	msg := message.NewMessage(p.UUID, p.Payload)
	msg.Metadata = p.Metadata
	if err := b.take(p.Relay, p.Topic, msg); err != nil {
		*r = Receipt{Refused: err.Error(), Permanent: errors.Is(err, outbox.ErrPermanent)}
	}
	return nil
}

// publisher sends messages to the broker of the test, one after the other.
type publisher struct {
	client *rpc.Client
	relay  string
	reach  func(Point, map[string]int)
}

func dial(addr, relay string, reach func(Point, map[string]int)) (*publisher, error) {
	client, err := rpc.Dial("tcp", addr)
	return &publisher{client: client, relay: relay, reach: reach}, err
}

// Publish returns at the first message that is refused.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	p.reach(BeforePublish, nil)
	for i, m := range msgs {
		if i > 0 {
			p.reach(MidPublish, map[string]int{Left: len(msgs) - i})
		}
		var r Receipt
		err := p.client.Call("Broker.Deliver", Parcel{p.relay, topic, m.UUID, m.Metadata, m.Payload}, &r)
		switch {
		case err != nil:
			return err
		case r.Permanent:
			return outbox.Permanent(errors.New(r.Refused))
		case r.Refused != "":
			return errors.New(r.Refused)
		}
	}
	p.reach(AfterPublish, nil)
	return nil
}

// Close closes the connection.
func (p *publisher) Close() error { return p.client.Close() }
