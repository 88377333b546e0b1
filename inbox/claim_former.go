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

// FormerKey names the key of the epoch before, and the consumer looks messages up under that key too. In the
// transaction of its claim, a delivery also claims its former key, as superseded, so that processes of the
// last release take other copies for duplicates. If the epoch before has the message, the delivery continues
// as one of that epoch; see [claim.asFormer].

// errFormer says that the epoch before has the message, so that its answer counts.
var errFormer = errors.New("known by its former key")

// former returns the consumer of the epoch before, with these settings and its own key, or nil if there is
// no FormerKey. It serves no handler and is not enrolled, so that a handler of that epoch still can be.
func (s *Store) former(config ConsumerConfig, heir *claimConsumer) *claimConsumer {
	config, is := config.former()
	if !is {
		return nil
	}
	name := stored.Name{Name: config.Name, Epoch: config.Epoch}
	return &claimConsumer{
		store: s, config: config, prefix: name.Prefix(), tally: s.tallies.of(name), slots: heir.slots, heir: heir,
		row: s.rows.Registered(config.selfAsFormer()),
	}
}

// former returns the settings of the epoch before, and whether there is a FormerKey.
func (c ConsumerConfig) former() (ConsumerConfig, bool) {
	if c.FormerKey.of == nil {
		return c, false
	}
	c.Epoch, c.Key, c.FormerKey = c.Epoch-1, c.FormerKey, Key{}
	c.setDefaults()
	return c, true
}

// formerIsOver logs once that FormerKey is no longer needed.
func (c *claimConsumer) formerIsOver(row stored.Consumer) {
	if c.config.FormerKey.of == nil || c.config.Retention == Forever || time.Since(time.UnixMicro(row.CreatedAt)) < c.config.Retention {
		return
	}
	c.formerOver.Do(func() {
		c.store.log.Info("inbox: FormerKey may be over: remove it Retention after the last process of the last release ended, and when no message is open that was stored while that release ran",
			watermill.LogFields{"consumer": c.config.Name, "epoch": c.config.Epoch})
	})
}

// formerIsOver tells the consumer of a row that its FormerKey may be no longer needed, if it runs here.
func (s *Store) formerIsOver(row stored.Consumer) {
	s.mu.Lock()
	c := s.consumers[stored.Name{Name: string(row.Name), Epoch: row.Epoch}]
	s.mu.Unlock()
	if c != nil {
		c.formerIsOver(row)
	}
}

// inherited reports whether d is a stored message of this epoch that is being looked up in the epoch before.
func (d *delivery) inherited() bool {
	return d.consumer.heir != nil && d.lease != nil && d.lease.queue.name == d.consumer.queueName()
}

// queueName returns the name of the consumer whose queue delivers to c.
func (c *claimConsumer) queueName() stored.Name {
	if c.heir != nil {
		return c.heir.name()
	}
	return c.name()
}

// findFormer finds the key of d in the epoch before. A message without one has no claim there.
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
		d.log().Error("inbox: FormerKey failed on a message, which is not looked up under it; said once per consumer", err, nil)
	})
	return nil
}

// keyOf finds the key of d for c. If a queue delivers d and c is the consumer of the epoch before, it takes
// the key from the message as it came: the queue of the last release gave the message that id.
func (c *claimConsumer) keyOf(d *delivery) (string, error) {
	if c.heir == nil || d.queueAttempt() == nil {
		return c.config.Key.find(d.msg)
	}
	return c.config.Key.valueFrom(d.topic, d.copyOf(d.as.Came))
}

// claimFormer claims the former key in the transaction of the claim, and waits for twins as the claim does.
// It reports false if the caller must try again: the claim of the former key was deleted meanwhile, or this
// is the first sign that messages share a former key.
func (cl *claim) claimFormer(span *span, tx *sqlx.Tx) (won bool, err error) {
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
		return false, nil // gives up MySQL's lock on the claim, for which all that share the key would wait
	}
	if known || err != nil || cl.lease == nil {
		return known, err
	}
	// A former claim that is open but has no message leaves nothing to move to this epoch.
	return cl.execClaim(span, tx, cl.consumer.store.dialect.CloseClaim, stored.ResultSuperseded, cl.former32, cl.formerID)
}

// askFormer reports whether the former key is claimed. It returns errFormer unless a message of this epoch
// made that claim.
func (cl *claim) askFormer(ctx context.Context, db sqlx.QueryerContext) (known bool, err error) {
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

// awaitFormer returns ErrInProgress for a stored message while the epoch before stores one under its former
// key. That one moves to this epoch, where only one of the two remains.
func (cl *claim) awaitFormer(ctx context.Context, db sqlx.QueryerContext) error {
	_, err := cl.consumer.store.kept(ctx, db, cl.former32, cl.formerID)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look up the stored message in the epoch before: %w", err)
	}
	return fmt.Errorf("%w, in the epoch before", ErrInProgress)
}

// asFormer continues with the delivery as one of the epoch before.
func (cl *claim) asFormer() (*claim, error) { return cl.consumer.former.claim(cl.msg, cl.visit) }

// lookOnly refuses to claim an inherited message in the epoch before: its claim there was deleted a moment
// ago, and the next delivery looks it up again.
func (cl *claim) lookOnly(next move) error {
	if !cl.inherited() || cl.collidedWith != nil || next == done || next == look {
		return nil
	}
	return fmt.Errorf("%w, in the epoch before", ErrInProgress)
}
