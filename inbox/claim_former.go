package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// A consumer whose key was changed looks under the key of the epoch before as well, while FormerKey names
// it. A delivery that wins its claim claims its former key too, superseded from the beginning and in the
// same transaction: processes of the last release take other copies of it for duplicates. Where the last
// release has the message, the delivery goes on as one of that epoch; see [Claim.asFormer].

// errFormer says that the epoch before has the message, so that its answer counts.
var errFormer = errors.New("known by its former key")

// former returns the consumer of the epoch before, with these settings and its own key; nil without one.
// It is not enrolled: it serves no handler, and the one of a release that still has it may do so.
func (s *Store) former(config ConsumerConfig, heir *Consumer) *Consumer {
	config, is := config.former()
	if !is {
		return nil
	}
	name := stored.Name{Name: config.Name, Epoch: config.Epoch}
	return &Consumer{
		store: s, config: config, prefix: name.Prefix(), tally: s.tallies.of(name), slots: heir.slots, heir: heir,
		row: s.rows.Registered(config.selfAsFormer()),
	}
}

// former returns the settings of the epoch before, and whether FormerKey names its key.
func (c ConsumerConfig) former() (ConsumerConfig, bool) {
	if c.FormerKey.of == nil {
		return c, false
	}
	c.Epoch, c.Key, c.FormerKey = c.Epoch-1, c.FormerKey, Key{}
	c.setDefaults()
	return c, true
}

// formerIsOver says once that the former key is not needed any more.
func (c *Consumer) formerIsOver(row stored.Consumer) {
	if c.former == nil || c.config.Retention == Forever || time.Since(time.UnixMicro(row.CreatedAt)) < c.config.Retention {
		return
	}
	c.formerOver.Do(func() {
		c.store.log.Info("inbox: what was handled under FormerKey is forgotten: leave FormerKey out",
			watermill.LogFields{"consumer": c.config.Name, "epoch": c.config.Epoch})
	})
}

// inherited reports whether d is looked up under the former key of the consumer whose queue stored it.
func (d *delivery) inherited() bool {
	return d.consumer.heir != nil && d.lease != nil && d.lease.queue.name == d.consumer.queueName()
}

// queueName is whose queue delivers to c.
func (c *Consumer) queueName() stored.Name {
	if c.heir != nil {
		return c.heir.name()
	}
	return c.name()
}

// findFormer finds the key that d has in the epoch before. A message without one has no claim there.
func (d *delivery) findFormer() error {
	former := d.consumer.former
	if former == nil {
		return nil
	}
	key, err := former.keyOf(d)
	switch {
	case err == nil:
		d.formerID = keycode.Encode(key)
		if d.lease != nil && bytes.Equal(d.lease.row.Original, d.formerID) { // it collided in the epoch before
			d.formerID = d.lease.row.MessageID
		}
		return nil
	case errors.Is(err, errNoKey):
		return nil
	}
	if _, err := noKey(d.ctx, err); err != nil {
		return fmt.Errorf("former key: %w", err)
	}
	former.warnedFormer.Do(func() {
		d.log().Error("inbox: the former key of a message cannot be found, so it is not looked for under it; said once per consumer", err, nil)
	})
	return nil
}

// keyOf finds the key that d has for c. For the last release it is, where a queue delivers, that of the message
// as it came: its queue gave the message its id.
func (c *Consumer) keyOf(d *delivery) (string, error) {
	if c.heir == nil || d.queueAttempt() == nil {
		return c.config.Key.find(d.msg)
	}
	return c.config.Key.valueFrom(d.topic, d.copyOf(d.as.Came))
}

// claimFormer claims the former key in the transaction of the claim, and waits as it does. It reports
// false where that is to be tried again: where nothing is known any more of a former key that was just there,
// or messages are found to share theirs.
func (cl *Claim) claimFormer(span *span, tx *sqlx.Tx) (won bool, err error) {
	if cl.formerID == nil {
		return true, nil
	}
	shared := &cl.consumer.formerShared
	if shared.Load() {
		if known, err := cl.askFormer(span.tx, tx); known || err != nil {
			return known, err
		}
	}
	won, err = cl.execClaim(span, tx, cl.consumer.store.dialect.ClaimFormer, cl.former32, cl.formerID, cl.hash, cl.token)
	if won || err != nil {
		return won, err
	}
	known, err := cl.askFormer(span.tx, tx)
	if known && !shared.Swap(true) {
		return false, nil // MySQL has locked the claim, for which all that share it would wait
	}
	if known || err != nil || cl.lease == nil {
		return known, err
	}
	// Of one that is open without a message there is nothing to move to this epoch.
	return cl.execClaim(span, tx, cl.consumer.store.dialect.CloseClaim, stored.ResultSuperseded, cl.former32, cl.formerID)
}

// askFormer reports whether there is a claim of the former key, and returns errFormer where it is not of
// a message of this epoch.
func (cl *Claim) askFormer(ctx context.Context, db sqlx.QueryerContext) (known bool, err error) {
	if cl.formerID == nil {
		return false, nil
	}
	var row struct {
		Result int16 `db:"result"`
		Token  int64 `db:"token"`
	}
	err = sqlx.GetContext(ctx, db, &row, cl.consumer.store.dialect.SelectClaim, cl.former32, cl.formerID)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up the former key: %w", err)
	case row.Result == stored.ResultSuperseded:
		return true, nil
	case row.Result == stored.ResultOpen && cl.lease != nil:
		return false, cl.awaitFormer(ctx, db)
	}
	return true, errFormer
}

// awaitFormer has a stored message wait for the one that is open under its former key: that moves to this
// epoch, where one of the two is left.
func (cl *Claim) awaitFormer(ctx context.Context, db sqlx.QueryerContext) error {
	var kept int64
	err := sqlx.GetContext(ctx, db, &kept, cl.consumer.store.dialect.Queue.SelectStored, cl.former32, cl.formerID)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look whether the message is stored in the epoch before: %w", err)
	}
	return fmt.Errorf("%w, in the epoch before", ErrInProgress)
}

// asFormer goes on with the delivery as one of the epoch before.
func (cl *Claim) asFormer() (*Claim, error) { return cl.consumer.former.claim(cl.msg, cl.visit) }

// lookOnly refuses to do more than look with a stored message of the epoch that follows: what was known a
// moment ago is not any more, and is looked for again with the next delivery.
func (cl *Claim) lookOnly(next move) error {
	if !cl.inherited() || cl.collidedWith != nil || next == done || next == look {
		return nil
	}
	return fmt.Errorf("%w, in the epoch before", ErrInProgress)
}
