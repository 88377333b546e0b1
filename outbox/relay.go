package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// Relay sends what a [Publisher] stored, at least once: a message is deleted, or marked as
// sent, only after the broker has confirmed it. Messages of one order key go out in the
// order in which they were stored; see [Config.OrderKey].
//
// Several relays, in as many processes, divide the work by order key and take over from
// each other. No transaction is open while a relay talks to the broker.
type Relay struct {
	*tables
	*outside
	config    RelayConfig
	to        message.Publisher
	observers observers
	patience  time.Duration // with each of them
	woken     chan struct{}
	shares    atomic.Bool // other relays own shards too
}

// NewRelay returns a Relay from the outbox in db to a broker's publisher. The publisher must
// return only when the broker has the messages; watermill-amqp's does not by default, see
// package pubsub/rabbitmq. NewRelay opens no connection, unless the driver does not say which
// database it is for. A service that has a *sql.DB gives sqlx.NewDb(db, "pgx"), as to
// [NewPublisher].
func NewRelay(db *sqlx.DB, to message.Publisher, config RelayConfig) (*Relay, error) {
	if to == nil {
		return nil, errors.New("outbox: NewRelay needs a publisher")
	}
	if isOutbox(to) {
		return nil, errors.New("outbox: NewRelay got the outbox itself: pass it the broker's publisher")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	d, err := openTables(db, config.Dialect, names(config.Schema, config.TablePrefix))
	if err != nil {
		return nil, err
	}
	return &Relay{
		tables: d, outside: newOutside(config.Logger), config: config, to: to,
		observers: newObservers(config.Observers), patience: observerPatience, woken: make(chan struct{}, 1),
	}, nil
}

// isOutbox reports whether to, or what it decorates, stores messages here.
func isOutbox(to message.Publisher) bool {
	switch p := to.(type) {
	case *Publisher, *decorated:
		return true
	case interface{ Unwrap() message.Publisher }:
		return isOutbox(p.Unwrap())
	}
	return false
}

// Run relays until ctx ends. It then reads no more messages, waits for those on their way, for
// RelayConfig.Drain at most, and gives its shards up to other relays. The next relay sends
// again what the broker had not confirmed by then.
//
// Run logs outages of the database and of the broker, and waits for them to end. It returns an
// error if a table is missing, or a connection to MySQL cannot carry each character, and, when ctx
// has ended, if messages were still on their way after RelayConfig.Drain or when it lost its lease,
// or a goroutine had panicked.
func (r *Relay) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside.Go(func() { r.listen(ctx) })
	beside.Go(func() { r.purgeAgain(ctx) })
	failures, waits := 0, false
	var cutOff error // until another term has these messages
	for {
		began := time.Now()
		err := r.await("its work", func() error { return r.term(ctx) })
		switch {
		case errors.Is(err, errCutOff):
			cutOff = err
		case !errors.As(err, new(notBegun)):
			cutOff = nil
		}
		switch {
		case ctx.Err() != nil:
			return told(cmp.Or(cutOff, err))
		case errors.Is(err, ErrNotMigrated), errors.Is(err, database.ErrCharset):
			return errorf("relay: %w", err)
		}
		if time.Since(began) > r.config.Lease {
			failures = 0
		}
		pause := restSettled
		switch {
		case !errors.Is(err, errFormer):
			failures++
			r.log.Error("outbox: the relay starts over", err, nil)
			pause = growing(failures, 100*time.Millisecond, 5*time.Second)
		case !waits:
			waits = true
			r.log.Info("outbox: the relay waits for relays of an earlier release to stop", nil)
		}
		select {
		case <-ctx.Done():
			return told(cmp.Or(cutOff, err))
		case <-time.After(pause):
		}
	}
}

// told is what Run returns for err when it was told to end: nil if nothing was on its way.
func told(err error) error {
	if errors.Is(err, errDrain) || errors.Is(err, errCutOff) || errors.Is(err, errPanicked) {
		return errorf("relay: %w", err)
	}
	return nil
}

// RelayBatch relays what is stored now and returns how many messages it sent: for those who
// prefer cron to [Relay.Run]. It leaves messages whose retry is not due, and those of shards
// that a running relay owns, to a later call. The error is the first failure; RelayBatch still
// tries the other messages, unless nothing gets through. It gives up when the outbox cannot be read
// or written for RelayConfig.Drain: a later call sends again, with the same UUIDs, what this one
// has sent and could not record. If ctx ends before it is done, it finishes what is on its way, and
// returns the error of ctx. It does not delete messages that were kept: call [Relay.Purge].
func (r *Relay) RelayBatch(ctx context.Context) (sent int, err error) {
	if sent, err = r.oneTerm(ctx, true); err != nil {
		err = errorf("relay: %w", err)
	}
	return sent, err
}

// Wake has the relay look for messages at once. It does not wait, and may be called from any
// goroutine.
func (r *Relay) Wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// notBegun is why a term has not begun.
type notBegun struct{ error }

func (e notBegun) Unwrap() error { return e.error }

func (r *Relay) term(ctx context.Context) error {
	_, err := r.oneTerm(ctx, false)
	return err
}

// oneTerm works for as long as one lease holds. When it returns, everything it started has ended.
func (r *Relay) oneTerm(ctx context.Context, once bool) (sent int, err error) {
	k := newKeeper(r)
	k.once = once
	if err := k.begin(ctx); err != nil {
		return 0, notBegun{database.Explain(err)}
	}
	rings, leave := r.rings() //nolint:contextcheck // it sends notices also while the relay stops
	defer leave()
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	lost, ended := make(chan error, 1), make(chan struct{})
	r.beside("the keeper of the shards", func() error { return k.run(beating) }, func(err error) {
		defer close(ended)
		if err != nil {
			lost <- err
		}
	})
	defer func() {
		k.lease.end()
		stop()
		<-ended
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if e := r.await("the leaving", func() error { return k.leave(last) }); e != nil {
			r.log.Error("outbox: the relay could not give up its shards, which others get when its lease ends", database.Explain(e), nil)
		}
	}()
	p := newPump(r, k.lease, once)
	err = p.work(ctx, k, lost, rings)
	return p.sent, err
}

// rings returns a channel that receives whenever there may be work, and what stops it.
func (r *Relay) rings() (<-chan struct{}, func()) {
	near, leave := r.bell.Listen()
	far := notifier{tables: r.tables}
	all := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		for {
			rung := false
			select {
			case <-near:
				rung = true
			case <-r.woken:
			case <-done:
				return
			}
			select {
			case all <- struct{}{}:
			default:
			}
			if rung && r.shares.Load() { // the message may be in another relay's shard
				_ = r.await("a notice", func() error { far.notify(); return nil }) // await logs it
			}
		}
	}()
	return all, func() {
		leave()
		close(done)
	}
}

// purgeAgain purges every minute until ctx ends.
func (r *Relay) purgeAgain(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		n := 0
		err := r.await("the purge", func() (err error) { n, err = r.Purge(ctx); return err })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.log.Error("outbox: the purge failed; retrying", err, nil)
		}
		if n > 0 {
			r.log.Info("outbox: sent messages purged", watermill.LogFields{"count": n})
		}
		r.tell(ctx, KindPurged, Event{Reason: "retention", Count: n, Err: err})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Purge deletes sent messages whose retention has ended and returns how many. [Relay.Run] and
// inbox.Store.Run call it regularly.
func (r *Relay) Purge(ctx context.Context) (int, error) {
	const batch = 1000
	var now int64
	if err := inTime(ctx, func(ctx context.Context) error { return r.db.GetContext(ctx, &now, r.db.Dialect.Now) }); err != nil {
		return 0, fmt.Errorf("outbox: purge: %w", database.Explain(err))
	}
	total := 0
	for {
		var n int64
		err := inTime(ctx, func(ctx context.Context) (err error) {
			n, err = r.db.Exec(ctx, r.sql.PurgeSent, now, batch)
			return err
		})
		total += int(n)
		if err != nil {
			return total, fmt.Errorf("outbox: purge: %w", database.Explain(err))
		}
		if n < batch {
			return total, nil
		}
	}
}
