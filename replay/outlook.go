package replay

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// outlook adds up what consumers would do with the messages of several pages. Of messages with one key, a consumer would
// handle one, on whatever pages they are.
type outlook struct {
	of   *admin.Admin
	sums []admin.Forecast
	seen map[string]map[string]bool // the keys on earlier pages, by consumer
}

func (o *outlook) add(ctx context.Context, msgs []*message.Message) error {
	forecasts, err := o.of.Forecast(ctx, msgs)
	if err != nil {
		return err
	}
	without := make(map[string][]admin.Forecast) // by which messages were left out
	for _, f := range forecasts {
		left, fresh := o.fresh(&f, msgs)
		if len(fresh) < len(msgs) {
			if _, known := without[left]; !known {
				if without[left], err = o.of.Forecast(ctx, fresh); err != nil {
					return err
				}
			}
			f = ofConsumer(without[left], f.KnownConsumer)
		}
		o.sum(f)
	}
	return nil
}

// fresh returns the messages that have no key of an earlier page, and in text which they are not.
func (o *outlook) fresh(f *admin.Forecast, msgs []*message.Message) (left string, fresh []*message.Message) {
	seen := o.seen[f.Name]
	if seen == nil {
		seen = make(map[string]bool)
		o.seen[f.Name] = seen
	}
	of := inbox.Internals{}
	key, err := of.ParseKey(f.Key)
	if err != nil {
		return "", msgs
	}
	marks, values := make([]byte, len(msgs)), make([]string, 0, len(msgs))
	for i, msg := range msgs {
		value, err := of.KeyOf(key, msg)
		if err == nil && seen[value] {
			marks[i] = 1
			continue
		}
		fresh = append(fresh, msg)
		if err == nil {
			values = append(values, value)
		}
	}
	for _, value := range values { // Forecast knows the copies within a page
		seen[value] = true
	}
	return string(marks), fresh
}

// ofConsumer returns the forecast for a consumer.
func ofConsumer(all []admin.Forecast, c admin.KnownConsumer) admin.Forecast {
	for _, f := range all {
		if f.Name == c.Name {
			return f
		}
	}
	return admin.Forecast{KnownConsumer: c}
}

func (o *outlook) sum(f admin.Forecast) {
	for i := range o.sums {
		if s := &o.sums[i]; s.Name == f.Name {
			s.Completed, s.Open, s.New, s.Before = s.Completed+f.Completed, s.Open+f.Open, s.New+f.New, s.Before+f.Before
			return
		}
	}
	o.sums = append(o.sums, f)
}
