package problems

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/outbox"
)

// Outbox is what is known of an outbox.
type Outbox struct {
	Backlog outbox.Backlog
	Layout  outbox.Layout
	Err     error // why nothing is known
}

// LookAt reads what is to be known of an outbox. It returns an error if the database does not answer; if tables are
// missing, Err of the Outbox says so.
func LookAt(ctx context.Context, out *outbox.Publisher) (*Outbox, error) {
	var o Outbox
	o.Backlog, o.Err = out.Backlog(ctx, outbox.BacklogOptions{})
	if o.Err == nil {
		o.Layout, o.Err = out.Shards(ctx)
	}
	if o.Err != nil && !legible(o.Err) {
		return nil, o.Err
	}
	return &o, nil
}

// outbox finds what keeps messages of the outbox from being sent.
func (f *finder) outbox() {
	o := f.Outbox
	if o == nil {
		return
	}
	if o.Err != nil {
		f.add(Problem{Kind: Unreadable, What: o.Err.Error()})
		return
	}
	if p, found := o.sending(); found {
		f.add(p)
	}
	if o.Backlog.Parked.N > 0 {
		f.add(Problem{
			Kind: OutboxParked, What: "the outbox: relays gave up messages", Count: o.Backlog.Parked, Since: o.Backlog.OldestParked,
		})
	}
}

// sending returns the worst of what keeps messages from being sent, because it causes the others. A relay whose lease
// has ended says nothing of the present, and nothing is wrong without relays if nothing is to be sent.
func (o *Outbox) sending() (p Problem, found bool) {
	b, relays := o.Backlog, o.relays()
	p = Problem{Count: b.Unsent(), Since: b.OldestPending}
	unowned := o.Layout.Unowned()
	switch {
	case relays.out > 0:
		p.Kind, p.Since = BrokerOut, relays.outFor
		p.What = fmt.Sprintf("the broker is out for relay %s: %s", relays.outName, relays.outError)
		if relays.out > 1 {
			p.What = fmt.Sprintf("the broker is out for %d relays: %s", relays.out, relays.outError)
		}
	case b.OldestPending == 0: // also if what is left waits behind a message that relays gave up
		return p, false
	case relays.alive == 0 && (relays.ended > 0 || b.OldestPending >= OutboxTooLong):
		p.Kind, p.What = NoRelay, "no relay runs, so nothing is sent"
		if relays.ended > 0 {
			p.Since = relays.endedFor
		}
	case relays.alive > 0 && unowned > 0 && b.OldestPending >= handoverTooLong:
		p.Kind, p.What = ShardsUnowned, fmt.Sprintf("%d of %d shards have no relay, so nobody sends their messages", unowned, len(o.Layout.Shards))
	case b.OldestPending >= OutboxTooLong:
		p.Kind, p.What = OutboxLag, "the outbox: messages are not sent in time"
	default:
		return p, false
	}
	return p, true
}

// relays sums up the relays that have or had a lease.
type relays struct {
	alive, out, ended int
	outName, outError string
	outFor, endedFor  time.Duration // the longest, and the shortest
}

func (o *Outbox) relays() (r relays) {
	for _, lease := range o.Layout.Relays {
		switch {
		case !lease.Alive:
			if ago := o.Layout.At.Sub(lease.Until); r.ended == 0 || ago < r.endedFor {
				r.endedFor = ago
			}
			r.ended++
			continue
		case lease.BrokerError != "":
			if since := o.Layout.At.Sub(lease.BrokerOutSince); r.out == 0 || since > r.outFor {
				r.outName, r.outError, r.outFor = lease.Name, lease.BrokerError, since
			}
			r.out++
		}
		r.alive++
	}
	return r
}
