package original

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Delivery is a message on its way through one part of Millrace.
type Delivery struct {
	Came *Message // to the outermost part
	Seen *Message // by this part; equal to Came if nothing changed it on its way

	apart bool // others work on copies
}

// Arrive records msg on entry.
func Arrive(msg *message.Message) Delivery {
	came := From(msg)
	if came != nil && came.Is(msg) {
		return Delivery{Came: came, Seen: came, apart: true}
	}
	seen := Of(msg)
	if came == nil {
		came = seen
	}
	return Delivery{Came: came, Seen: seen}
}

// Changed reports whether something outside this part changed the message.
func (d *Delivery) Changed() bool { return d.Came != d.Seen }

// HandOver lets others change msg, after giving it copies of payload and metadata.
func (d *Delivery) HandOver(msg *message.Message) {
	if !d.apart {
		d.Seen.Give(msg)
		d.apart = true
	}
}

// Restore resets msg to its state on entry. Values that others took from it stay as they are.
func (d *Delivery) Restore(msg *message.Message) {
	if !d.Seen.Is(msg) {
		d.Seen.Give(msg)
	}
}

// Apart returns produced with a copy, with ctx, in place of msg itself: msg will be restored, and
// its context ends before the copy is published.
func Apart(ctx context.Context, produced []*message.Message, msg *message.Message) []*message.Message {
	if !slices.Contains(produced, msg) {
		return produced
	}
	made := msg.Copy()
	made.SetContext(ctx)
	produced = slices.Clone(produced)
	for i, m := range produced {
		if m == msg {
			produced[i] = made
		}
	}
	return produced
}
