package matrix_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/outbox"
)

// fate is what must become of a message.
type fate int

const (
	handled    fate = iota
	troubled        // the handler fails the first time in each process, then succeeds
	suppressed      // handled, but what the handler returns is not sent
	terminal        // the handler says that no attempt would succeed
	keyless         // it lacks what the key is made of
	refused         // it is replayed, and the consumer refuses that
)

// effective reports whether the effects of the message must be there once.
func (f fate) effective() bool { return f <= suppressed }

// letter is a message of the stream.
type letter struct {
	uuid, customer, aggregate string
	version                   int64
	fate                      fate
}

// common are the messages of each stream: two aggregates of one customer and one of another.
var common = []letter{
	{"a1", "ada", "a", 1, handled}, {"a2", "ada", "a", 2, handled}, {"a3", "ada", "a", 3, handled},
	{"b1", "ada", "b", 1, troubled}, {"b2", "ada", "b", 2, handled},
	{"c1", "bob", "c", 1, handled},
}

// text is the payload that the handler must see.
func (l letter) text() string {
	return fmt.Sprintf(`{"id":%q,"note":"long enough to be kept outside of its row"}`, l.uuid)
}

// forgery is another payload under the same UUID.
func (l letter) forgery() string {
	return fmt.Sprintf(`{"id":%q,"note":"as long, but it is not what was sent at first"}`, l.uuid)
}

// forgedUUID is of which message another payload comes too, in a stream with collisions.
const forgedUUID = "c1"

// texts are the payloads that the handler may see.
func (l letter) texts(s *service) []string {
	if s.forged && l.uuid == forgedUUID {
		return []string{l.text(), l.forgery()}
	}
	return []string{l.text()}
}

// wrap makes of a text what the broker delivers.
func (s *service) wrap(text string) string {
	if s.packed {
		return packedMark + text
	}
	return text
}

// came reports whether payload is what the broker has delivered.
func (l letter) came(s *service, payload []byte) bool {
	return slices.ContainsFunc(l.texts(s), func(text string) bool { return s.wrap(text) == string(payload) })
}

const (
	packedMark    = "packed:"
	orderField    = "order_id"
	customerField = "customer"
	sourceField   = "source"
	playField     = "play"
	epochField    = "epoch"
)

func (l letter) message(s *service) *message.Message {
	msg := message.NewMessage(l.uuid, []byte(s.wrap(l.text())))
	msg.Metadata.Set(customerField, l.customer)
	outbox.Stamp(msg, l.aggregate, l.version)
	if l.fate != keyless {
		msg.Metadata.Set(orderField, "order "+l.uuid)
	}
	if l.fate == refused || l.fate == suppressed {
		msg.Metadata.Set(inbox.ReplayField, "of yesterday")
	}
	return msg
}

// inputs is the stream: each message twice, in an order that follows from seed.
func (s *service) inputs(seed uint64) []inboxtest.Input {
	var all []inboxtest.Input
	for _, l := range s.letters {
		all = append(all, inboxtest.To(topic, l.message(s), l.message(s))...)
	}
	if s.forged {
		forgery := s.letter(forgedUUID).message(s)
		forgery.Payload = []byte(s.wrap(s.letter(forgedUUID).forgery()))
		all = append(all, inboxtest.To(topic, forgery, forgery)...)
	}
	dice := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it must be repeatable
	dice.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all
}

// arrivals returns the messages of a customer in the order of their first arrival.
func (s *service) arrivals(inputs []inboxtest.Input, customer string) []string {
	var order []string
	seen := map[string]bool{}
	for _, in := range inputs {
		l := s.letter(in.Message.UUID)
		if l.customer == customer && l.fate.effective() && !seen[l.uuid] {
			seen[l.uuid] = true
			order = append(order, l.uuid)
		}
	}
	return order
}

func (s *service) letter(uuid string) letter {
	for _, l := range s.letters {
		if l.uuid == uuid {
			return l
		}
	}
	return letter{uuid: uuid, fate: terminal}
}
