package admin

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// A Forecast counts what the newest epoch of a consumer would do with messages.
type Forecast struct {
	KnownConsumer

	Completed int // duplicates, which would be acked
	Open      int // stored, and delivered from there
	New       int // would run its handler, unless its OnReplay says otherwise
	Before    int // completed or open in older epochs
}

// Listens reports whether the consumer has had some of the messages, in any epoch. If it has had
// none, it may not receive them at all.
func (f *Forecast) Listens() bool { return f.Completed+f.Open+f.Before > 0 }

// Forecast returns what each consumer of the namespace would do with msgs. It leaves out consumers
// whose key depends on more than the message, see [inbox.Key.OfMessage], and counts only messages
// that have the consumer's key.
func (a *Admin) Forecast(ctx context.Context, msgs []*message.Message) ([]Forecast, error) {
	known, err := a.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	var all []Forecast
	for i := 0; i < len(known); {
		end := i + 1 // of the epochs of one consumer
		for end < len(known) && known[end].Name == known[i].Name {
			end++
		}
		f, can, err := a.forecast(ctx, known[i:end], msgs)
		if err != nil {
			return nil, fmt.Errorf("inbox: forecast for consumer %q: %w", known[i].Name, database.Explain(err))
		}
		if can {
			all = append(all, f)
		}
		i = end
	}
	return all, nil
}

func (a *Admin) forecast(ctx context.Context, epochs []KnownConsumer, msgs []*message.Message) (f Forecast, can bool, err error) {
	newest := len(epochs) - 1
	f.KnownConsumer = epochs[newest]
	key, err := inbox.ParseKey(f.Key)
	if err != nil || !key.OfMessage() {
		return f, false, nil //nolint:nilerr // it is left out
	}
	var ids [][]byte
	seen := make(map[string]bool, len(msgs))
	for _, msg := range msgs {
		value, err := a.inbox.KeyOf(key, msg)
		if err != nil || seen[value] {
			continue // of another kind, or a copy
		}
		seen[value] = true
		ids = append(ids, keycode.Encode(value))
	}
	for i, epoch := range epochs {
		claimed, completed, err := a.countClaims(ctx, epoch, ids)
		if err != nil {
			return f, false, err
		}
		if i < newest {
			f.Before += claimed
			continue
		}
		f.Completed, f.Open, f.New = completed, claimed-completed, len(ids)-claimed
	}
	return f, true, nil
}

// countClaims counts how many of the stored keys a consumer has claimed, and completed.
func (a *Admin) countClaims(ctx context.Context, c KnownConsumer, ids [][]byte) (claimed, completed int, err error) {
	const atOnce = 500
	row, err := a.rows.Consumer(ctx, c.Name, c.Epoch)
	for len(ids) > 0 && err == nil {
		now := ids[:min(atOnce, len(ids))]
		ids = ids[len(now):]
		query, args, problem := a.rows.Dialect.In(a.rows.Dialect.Journal.CountClaims, row.ID, now)
		if err = problem; err != nil {
			break
		}
		var n, done int
		err = a.rows.Reader(ctx).QueryRowxContext(ctx, query, args...).Scan(&n, &done)
		claimed, completed = claimed+n, completed+done
	}
	return claimed, completed, err
}
