package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// LookAt is for how many messages, the first ones, [Replayer.Plan] finds out what consumers would do.
const LookAt = 10_000

// Plan says what a request would do.
type Plan struct {
	Topics   []Count
	Messages int // how many match, without regard to Filter.IDs
	LookedAt int // how many of the first were looked at; with Filter.IDs, only those it names

	// Consumers says what consumers would do with the messages that were looked at: the consumer
	// whose queue is the target, or else those that have had some of them. Silent are the consumers
	// that have had none, so that nobody can tell whether they would get them.
	Consumers []admin.Forecast
	Silent    []string

	// SideEffects are the consumers that IntoSideEffects would have to name, and does not.
	SideEffects []string

	lastID int64
}

// none is before every id. A bound of 0 would mean no bound.
const none = -1

// Plan says what [Replayer.Run] would do, and changes nothing.
func (p *Replayer) Plan(ctx context.Context, r Request) (Plan, error) {
	r.setDefaults()
	if err := r.validate(); err != nil {
		return Plan{}, explain(r.Name, err)
	}
	plan, err := p.plan(ctx, &r)
	return plan, explain(r.Name, err)
}

func (p *Replayer) plan(ctx context.Context, r *Request) (plan Plan, err error) {
	if plan.Topics, err = r.From.count(ctx, r.Filter, 0); err != nil {
		return plan, err
	}
	plan.lastID = none
	for _, c := range plan.Topics {
		plan.Messages += c.Messages
		plan.lastID = max(plan.lastID, c.lastID)
	}
	forecasts, err := p.look(ctx, r, &plan)
	if err != nil {
		return plan, err
	}
	only := r.To.only()
	for _, f := range forecasts {
		switch {
		case only != nil && f.Name != only.Consumer:
		case only == nil && !f.Listens():
			plan.Silent = append(plan.Silent, f.Name)
		default:
			plan.Consumers = append(plan.Consumers, f)
			if f.OnReplay == inbox.ReplayRefuse && only == nil && f.New > 0 && !slices.Contains(r.IntoSideEffects, f.Name) {
				plan.SideEffects = append(plan.SideEffects, f.Name)
			}
		}
	}
	err = p.known(ctx, r, &plan)
	return plan, err
}

// look returns what consumers would do with the first messages that r selects, at most LookAt. It holds one page of them
// at a time.
func (p *Replayer) look(ctx context.Context, r *Request, plan *Plan) ([]admin.Forecast, error) {
	o := outlook{of: admin.New(p.store), seen: make(map[string]map[string]bool)}
	source := newPages(r, plan.lastID)
	for after, last := int64(0), false; !last && plan.LookedAt < LookAt; {
		items, end, err := source.after(ctx, after, atOnce)
		if err != nil {
			return nil, err
		}
		if last = end; len(items) > 0 {
			after = items[len(items)-1].id
		}
		var msgs []*message.Message
		for _, i := range r.named(items) {
			msgs = append(msgs, i.msg)
		}
		msgs = msgs[:min(len(msgs), LookAt-plan.LookedAt)]
		if len(msgs) > 0 || last && plan.LookedAt == 0 { // even if there are none, it names the consumers
			if err := o.add(ctx, msgs); err != nil {
				return nil, err
			}
		}
		plan.LookedAt += len(msgs)
	}
	return o.sums, nil
}

// named returns the items that Filter.IDs names.
func (r *Request) named(items []item) []item {
	if len(r.Filter.IDs) == 0 {
		return items
	}
	var named []item
	for _, i := range items {
		if r.ids[i.msg.UUID] || i.key != "" && r.ids[i.key] {
			named = append(named, i)
		}
	}
	return named
}

// known refuses a target queue that nobody serves, or whose epoch is past. It also checks the rule of
// the queue's consumer, for which there may be no forecast because of its key.
func (p *Replayer) known(ctx context.Context, r *Request, plan *Plan) error {
	only := r.To.only()
	if only == nil {
		return nil
	}
	consumers, err := admin.New(p.store).Consumers(ctx)
	if err != nil {
		return err
	}
	served := false
	for _, c := range consumers {
		if c.Name == only.Consumer && c.Epoch > only.Epoch {
			return fmt.Errorf("consumer %q has epoch %d: set that as the epoch of the target, not %d", c.Name, c.Epoch, only.Epoch)
		}
		if c.Name != only.Consumer || c.Epoch != only.Epoch {
			continue
		}
		served = c.Served
		if c.OnReplay == inbox.ReplayRefuse && !slices.Contains(r.IntoSideEffects, c.Name) {
			plan.SideEffects = []string{c.Name}
		}
	}
	if !served {
		return fmt.Errorf("no queue delivers the stored messages of consumer %q, epoch %d: start its service with pubsub.Durable, or send to its topic",
			only.Consumer, only.Epoch)
	}
	return nil
}
