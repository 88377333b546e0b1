package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/bounded"
	"github.com/millrace-go/millrace/internal/database"
)

// KnownConsumer is an epoch of a consumer, as the tables know it.
type KnownConsumer struct {
	Name      string
	Epoch     int
	Key       string           // as [inbox.Key.String] describes it
	Retention time.Duration    // or inbox.Forever
	Window    time.Duration    // as declared; 0 if it was not
	OnReplay  inbox.ReplayRule // as set when a process last began to handle messages
	Paused    bool             // by an operator
	Served    bool             // a queue serves the consumer, in some process
	CreatedAt time.Time
	PurgedAt  time.Time // when a janitor last deleted expired claims; zero: never
	PurgeLine time.Time // when the youngest deleted claim was completed; zero: none was deleted
}

// Consumers lists the consumers of the namespace by name and epoch, without those of
// [inbox.Store.Leases].
func (a *Admin) Consumers(ctx context.Context) ([]KnownConsumer, error) {
	rows, err := a.matching(ctx, Filter{})
	if err != nil {
		return nil, fmt.Errorf("inbox: list the consumers: %w", database.Explain(err))
	}
	known := make([]KnownConsumer, 0, len(rows))
	for _, row := range rows {
		k := KnownConsumer{
			Name: string(row.Name), Epoch: row.Epoch, Key: string(row.KeySource),
			Retention: time.Duration(row.Retention) * time.Microsecond,
			Window:    time.Duration(row.Window) * time.Microsecond,
			OnReplay:  inbox.ReplayRule(row.OnReplay), Paused: row.Paused, Served: row.Served, CreatedAt: time.UnixMicro(row.CreatedAt).UTC(),
		}
		if row.Retention == 0 {
			k.Retention = inbox.Forever
		}
		if row.PurgeLine != 0 {
			k.PurgeLine = time.UnixMicro(row.PurgeLine).UTC()
		}
		if row.PurgedAt != 0 {
			k.PurgedAt = time.UnixMicro(row.PurgedAt).UTC()
		}
		known = append(known, k)
	}
	return known, nil
}

// Expired counts the claims of a consumer that are older than its retention.
type Expired struct {
	Consumer string
	Epoch    int
	Claims   Count
}

// Expired counts the claims that [inbox.Store.Purge] would delete, among the first lookAt claims of
// each consumer in the order of their keys, which is not the order of age.
func (a *Admin) Expired(ctx context.Context, lookAt int) ([]Expired, error) {
	if lookAt < 1 {
		return nil, fmt.Errorf("inbox: count expired claims: reading %d claims is too few", lookAt)
	}
	all, err := a.expired(ctx, lookAt)
	if err != nil {
		return nil, fmt.Errorf("inbox: count expired claims: %w", database.Explain(err))
	}
	return all, nil
}

func (a *Admin) expired(ctx context.Context, lookAt int) (all []Expired, err error) {
	now, err := a.rows.Now(ctx)
	if err != nil {
		return nil, err
	}
	consumers, err := a.matching(ctx, Filter{})
	if err != nil {
		return nil, err
	}
	for _, c := range consumers {
		if c.Retention == 0 {
			continue
		}
		var seen, n int
		err := a.rows.Reader(ctx).QueryRowxContext(ctx, a.rows.Dialect.CountExpired, now.UnixMicro()-c.Retention, c.ID, lookAt+1).
			Scan(&seen, &n)
		if err != nil {
			return nil, err
		}
		if n > 0 || seen > lookAt {
			all = append(all, Expired{string(c.Name), c.Epoch, Count{N: n, AtLeast: seen > lookAt}})
		}
	}
	return all, nil
}

// Preview counts what an operator's call would change for one consumer and epoch.
type Preview struct {
	Consumer string
	Epoch    int
	Served   bool // a queue serves the consumer, in some process
	Messages Count
}

// Preview counts the messages that [Admin.RetryAll] and [Admin.DiscardAll] would change with f now,
// up to countTo for each state of a consumer. With math.MaxInt it counts them all, which takes seconds
// for a million.
func (a *Admin) Preview(ctx context.Context, f Filter, countTo int) ([]Preview, error) {
	if countTo < 1 {
		return nil, fmt.Errorf("inbox: preview: countTo %d is less than 1", countTo)
	}
	all, err := a.preview(ctx, f, countTo)
	if err != nil {
		return nil, fmt.Errorf("inbox: preview: %w", database.Explain(err))
	}
	return all, nil
}

func (a *Admin) preview(ctx context.Context, f Filter, countTo int) (all []Preview, err error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	consumers, err := a.matching(ctx, f)
	if err != nil {
		return nil, err
	}
	for _, c := range consumers {
		p := Preview{Consumer: string(c.Name), Epoch: c.Epoch, Served: c.Served}
		for _, part := range a.reaches(c, f, 0, min(countTo, mostStep)+1, upwards, FailedTerminal, Parked) {
			n := 0
			for n <= countTo && !part.ended {
				if err := a.read(ctx, part); err != nil {
					return nil, err
				}
				n, part.found = n+len(part.found), part.found[:0]
			}
			p.Messages = p.Messages.Plus(bounded.UpTo(n, countTo))
		}
		if p.Messages.N > 0 {
			all = append(all, p)
		}
	}
	return all, nil
}
