package stored

import (
	"context"
	"fmt"
	"time"
)

// Neglect is a consumer with claims, of which no janitor deletes those that have expired.
type Neglect struct {
	Of    Name
	Since time.Duration // since a janitor last ran, or since the consumer is known
	Never bool          // no janitor has ever run
}

// Neglected lists the consumers of the namespace for which no janitor runs.
func (r *Rows) Neglected(ctx context.Context) (all []Neglect, err error) {
	now, err := r.Now(ctx)
	if err != nil {
		return nil, err
	}
	consumers, err := r.Consumers(ctx, "", nil)
	if err != nil {
		return nil, fmt.Errorf("read the consumers: %w", err)
	}
	for _, c := range consumers {
		since := now.Sub(time.UnixMicro(max(c.PurgedAt, c.CreatedAt)))
		if c.Retention == 0 || since < c.overdue() {
			continue
		}
		var claims, expired int
		if err := r.Reader(ctx).QueryRowxContext(ctx, r.Dialect.CountExpired, 0, c.ID, 1).Scan(&claims, &expired); err != nil {
			return nil, fmt.Errorf("look for claims: %w", err)
		}
		if claims > 0 {
			all = append(all, Neglect{Name{string(c.Name), c.Epoch}, since, c.PurgedAt == 0})
		}
	}
	return all, nil
}

// overdue returns how long a janitor may be away. It records its runs each hundredth of the
// retention, but cron may run it less often.
func (c Consumer) overdue() time.Duration {
	return max(time.Duration(c.Retention/4)*time.Microsecond, time.Hour)
}
