package original

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Delivery is a message on its way through one part of Millrace.
type Delivery struct {
	Came *Message // to the outermost part
	Seen *Message // by this part; the same where nothing changed it on its way

	apart bool // others have copies of their own
}

// Arrive notes what msg is, on entry.
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

// HandOver lets others work on msg: it has copies of its own from then on.
func (d *Delivery) HandOver(msg *message.Message) {
	if !d.apart {
		d.Seen.Give(msg)
		d.apart = true
	}
}

// Restore makes msg what it was on entry. What others took from it stays as they made it.
func (d *Delivery) Restore(msg *message.Message) {
	if !d.Seen.Is(msg) {
		d.Seen.Give(msg)
	}
}

// Apart returns what a handler produced of msg without msg itself, which is going to be
// restored: a copy stands for it, with ctx, since the handler's context ends before it is published.
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
