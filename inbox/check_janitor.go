package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
)

// janitor looks for claims that no janitor deletes.
func (c *inspection) janitor(ctx context.Context) error {
	s := c.store
	if c.failed() || s.work.expects.Load() { // this process has a janitor, which may not have run yet
		return nil
	}
	all, err := s.rows.Neglected(ctx)
	for _, n := range all {
		problem := fmt.Sprintf("no janitor has deleted its expired claims for %v", n.Since.Round(time.Minute))
		if n.Never {
			problem = "no janitor has ever deleted its expired claims"
		}
		c.warn(fmt.Sprintf("consumer %q, epoch %d", n.Of.Name, n.Of.Epoch), problem,
			"give the router the plugin (middleware.Inbox.AddTo adds it), call store.Run, or run Store.Purge from cron (or millrace purge, which archives nothing)")
	}
	return err
}

// mostInDoubt is how many steps in doubt one check reads.
const mostInDoubt = 1000

// steps looks for steps in doubt that nobody decides.
func (c *inspection) steps(ctx context.Context) error {
	if c.failed() {
		return nil
	}
	rows, err := c.store.rows.StepsInDoubt(ctx, mostInDoubt)
	if dialect.Denied(err) {
		return nil // a finding says so
	}
	if err != nil {
		return fmt.Errorf("look for steps in doubt: %w", err)
	}
	long := 0
	for _, row := range rows {
		if row.Undecided() {
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
