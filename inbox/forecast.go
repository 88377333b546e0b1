package inbox

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// quotedText is a name in the description of a key.
var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// OfMessage reports whether the key is made of the message alone: not by a function of the
// service's own, nor of where the message was delivered.
func (k Key) OfMessage() bool {
	bare := quotedText.ReplaceAllString(k.String(), "")
	return !strings.Contains(bare, "func:") && !strings.Contains(bare, "position") && !strings.Contains(bare, "/topic")
}

// A Forecast is what the newest epoch of a consumer would do with messages if they came.
type Forecast struct {
	KnownConsumer

	Completed int // duplicates: they would be acked
	Open      int // stored, and worked off from there
	New       int // its handler would run, unless its OnReplay says otherwise
	Before    int // completed or open in older epochs
}

// Listens reports whether the consumer has had some of the messages, in whatever epoch. Of one that has
// had none nobody can tell whether it would get them.
func (f *Forecast) Listens() bool { return f.Completed+f.Open+f.Before > 0 }

// Forecast tells what each consumer of the namespace would do with msgs. It leaves out a
// consumer whose key is not made of the message alone, see [Key.OfMessage], and counts for each only the messages that
// have its key.
func (s *Store) Forecast(ctx context.Context, msgs []*message.Message) ([]Forecast, error) {
	known, err := s.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	var all []Forecast
	for i := 0; i < len(known); {
		end := i + 1 // of the epochs of one name
		for end < len(known) && known[end].Name == known[i].Name {
			end++
		}
		f, can, err := s.forecast(ctx, known[i:end], msgs)
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

func (s *Store) forecast(ctx context.Context, epochs []KnownConsumer, msgs []*message.Message) (f Forecast, can bool, err error) {
	newest := len(epochs) - 1
	f.KnownConsumer = epochs[newest]
	key, err := ParseKey(f.Key)
	if err != nil || !key.OfMessage() {
		return f, false, nil //nolint:nilerr // it is left out
	}
	var ids [][]byte
	seen := make(map[string]bool, len(msgs))
	for _, msg := range msgs {
		value, err := key.find(msg)
		if err != nil || seen[value] {
			continue // of another kind, or a copy
		}
		seen[value] = true
		ids = append(ids, keycode.Encode(value))
	}
	for i, epoch := range epochs {
		claimed, completed, err := s.countClaims(ctx, epoch, ids)
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
func (s *Store) countClaims(ctx context.Context, c KnownConsumer, ids [][]byte) (claimed, completed int, err error) {
	const atOnce = 500
	row, err := s.consumerRow(ctx, c.Name, c.Epoch)
	for len(ids) > 0 && err == nil {
		now := ids[:min(atOnce, len(ids))]
		ids = ids[len(now):]
		query, args, problem := s.dialect.In(s.dialect.Journal.CountClaims, row.ID, now)
		if err = problem; err != nil {
			break
		}
		var n, done int
		err = s.db.Reader(ctx).QueryRowxContext(ctx, query, args...).Scan(&n, &done)
		claimed, completed = claimed+n, completed+done
	}
	return claimed, completed, err
}
