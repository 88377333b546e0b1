package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// janitor looks for claims that nobody deletes when their time is over.
func (c *inspection) janitor(ctx context.Context) error {
	s := c.store
	if c.failed() || s.work.expects.Load() { // this process has one, which may only begin
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

// overdue is how long a janitor may be away: it leaves a trace every hundredth of the
// retention, but some are run by cron.
func overdue(row stored.Consumer) time.Duration {
	return max(time.Duration(row.Retention/4)*time.Microsecond, time.Hour)
}

func (c *inspection) neglected(row stored.Consumer, since time.Duration) {
	problem := fmt.Sprintf("for %v no janitor has deleted what is older than its retention", since.Round(time.Minute))
	if row.PurgedAt == 0 {
		problem = "no janitor has ever deleted what is older than its retention"
	}
	c.warn(fmt.Sprintf("consumer %q, epoch %d", row.Name, row.Epoch), problem,
		"give the router the plugin (middleware.Inbox.AddTo adds it), call store.Run, or run Store.Purge (millrace purge) from cron")
}

// doubtTooLong is after which time the next attempt at a message does not decide a step any more.
const doubtTooLong = 15 * time.Minute

// mostInDoubt is how many steps in doubt are looked at.
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
			fmt.Sprintf("steps of which nobody knows whether they were done, of any consumer: %d; the first is %q of message %q", long, first.Name, keycode.String(first.MessageID)),
			"give them a Verify, or decide with Admin.DecideStep, or millrace steps decide, what Admin.StepsInDoubt lists")
	}
	return nil
}
