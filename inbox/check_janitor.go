package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// janitor looks for expired claims that no janitor deletes.
func (c *inspection) janitor(ctx context.Context) error {
	s := c.store
	if c.failed() || s.work.expects.Load() { // this process has a janitor, which may not have run yet
		return nil
	}
	now, err := s.rows.Now(ctx)
	if err != nil {
		return err
	}
	rows, err := s.rows.Consumers(ctx, "", nil)
	if err != nil {
		return fmt.Errorf("read the consumers: %w", err)
	}
	for _, row := range rows {
		since := time.UnixMicro(max(row.PurgedAt, row.CreatedAt))
		if row.Retention == 0 || now.Sub(since) < overdue(row) {
			continue
		}
		var claims, expired int
		err := s.db.QueryRowContext(ctx, s.dialect.CountExpired, 0, row.ID, 1).Scan(&claims, &expired)
		if err != nil {
			return fmt.Errorf("look for claims: %w", err)
		}
		if claims > 0 {
			c.neglected(row, now.Sub(since))
		}
	}
	return nil
}

// overdue returns how long a janitor may be away. It records its runs each hundredth of the
// retention, but cron may run it less often.
func overdue(row stored.Consumer) time.Duration {
	return max(time.Duration(row.Retention/4)*time.Microsecond, time.Hour)
}

func (c *inspection) neglected(row stored.Consumer, since time.Duration) {
	problem := fmt.Sprintf("no janitor has deleted its expired claims for %v", since.Round(time.Minute))
	if row.PurgedAt == 0 {
		problem = "no janitor has ever deleted its expired claims"
	}
	c.warn(fmt.Sprintf("consumer %q, epoch %d", row.Name, row.Epoch), problem,
		"give the router the plugin (middleware.Inbox.AddTo adds it), call store.Run, or run Store.Purge (millrace purge) from cron")
}

// doubtTooLong is how long a step may be in doubt: later, no further attempt at its message will decide it.
const doubtTooLong = 15 * time.Minute

// mostInDoubt is how many steps in doubt one check reads.
const mostInDoubt = 1000

// steps looks for steps in doubt that nobody decides.
func (c *inspection) steps(ctx context.Context) error {
	if c.failed() {
		return nil
	}
	var rows []stepRow
	err := c.store.db.SelectContext(ctx, &rows, c.store.dialect.Steps.SelectDoubtful, []byte(c.store.config.Namespace), mostInDoubt)
	if err != nil {
		return fmt.Errorf("look for steps in doubt: %w", err)
	}
	long := 0
	for _, row := range rows {
		if row.Remaining < -doubtTooLong.Microseconds() {
			long++
		}
	}
	if long > 0 {
		first := rows[0]
		c.warn(fmt.Sprintf("consumer %q, epoch %d", first.Consumer, first.Epoch),
			fmt.Sprintf("steps in doubt, of all consumers: %d; the first is %q of message %q", long, first.Name, keycode.String(first.MessageID)),
			"give the steps a Verify, or list them with Admin.StepsInDoubt and decide with Admin.DecideStep or millrace steps decide")
	}
	return nil
}
