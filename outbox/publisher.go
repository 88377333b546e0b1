package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/internal/steady"
)

// Publisher is a Watermill publisher that stores messages in the database instead of sending
// them: in the transaction that each message carries in its context, so that a message exists
// exactly if the work that it announces was committed. A [Relay] sends what it stored. It is
// safe for concurrent use, and holds no connection between calls.
type Publisher struct {
	*tables
	config   Config
	notifier notifier
	inserts  sync.Map // many to statement
	guards   sync.Map // weak pointer to a pool to what [Publisher.guardIn] found there
	asked    sync.Map // weak pointer to another pool than the publisher's to [Publisher.asksAgain]
	closed   atomic.Bool
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher on the service's own pool. It opens no connection,
// unless the driver does not say which database it is for. It reports all problems of config
// at once. A service that has a *sql.DB gives sqlx.NewDb(db, "pgx"), with the name of its
// driver: "pgx" and "postgres", "mysql", and "sqlite" and "sqlite3" are known.
func NewPublisher(db *sqlx.DB, config Config) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	config.Logger = steady.Logger(config.Logger, nil)
	d, err := openTables(db, config.Dialect, names(config.Schema, config.TablePrefix))
	if err != nil {
		return nil, err
	}
	return &Publisher{tables: d, config: config, notifier: notifier{tables: d}}, nil
}

// Migrate creates the tables, also those of the inbox, or brings them up to this release. It
// is idempotent, and safe when several processes start at once.
func (p *Publisher) Migrate(ctx context.Context) error {
	if err := p.db.Migrate(ctx); err != nil {
		return fmt.Errorf("outbox: migrate: %w", database.Explain(err))
	}
	return nil
}

// Schema returns the DDL of all tables, for services that keep migrations of their own.
func (p *Publisher) Schema() string { return p.db.Dialect.Schema() }

// Publish stores msgs, to be sent to topic: all of them or none. They must carry the same
// transaction in their contexts, that of inbox.Tx, [InTx] or [WithTx]; without one Publish
// returns [ErrNoTx] or, with Config.Standalone, commits them by itself. A relay sends them
// after the commit, at least once, with their UUIDs, metadata and payloads.
//
// Metadata fields that start with _millrace_ describe a delivery and are not stored. In a
// handler whose consumer suppresses what replayed messages would send (inbox.ReplaySuppress),
// Publish only counts the messages.
//
//nolint:contextcheck // the messages bring their contexts
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	return p.publish(topic, msgs, destinationOf)
}

// Decorate makes the Publisher a message.PublisherDecorator: it stores what a router would
// publish, in a transaction of its own, since a router publishes after every middleware has
// returned. With middleware.Inbox set Inbox.Outbox instead, which stores messages in the
// handler's transaction. Nothing is published to next; it is only closed.
func (p *Publisher) Decorate(next message.Publisher) (message.Publisher, error) {
	return &decorated{outbox: p, next: next}, nil
}

// Close makes later messages without a transaction fail with [ErrClosed]. Publish still
// stores those with one: a router closes the publishers of its handlers while handlers still
// run, and others may share the Publisher. Close closes neither the pool nor a relay.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}

// Wake tells relays that there is something to send: those of this process that share the
// pool or, if there are none, those of other processes where the database can notify them.
// Call it after a commit of your own; this module calls it after its own commits. It returns
// soon, and a lost wake-up costs time, not messages.
//
//nolint:contextcheck // it follows a commit, whose context may have ended
func (p *Publisher) Wake() {
	p.afterCommit(p.config.AfterCommit)
	p.afterCommit(func() {
		if !p.bell.Ring() {
			p.notifier.notify()
		}
	})
}

// afterCommit calls a function of the user's, or of the driver, and logs its panic: a caller
// who got it would take the messages for not stored.
func (p *Publisher) afterCommit(call func()) {
	defer func() {
		if r := recover(); r != nil {
			p.config.Logger.Error("outbox: AfterCommit panicked; the messages are stored all the same",
				fmt.Errorf("panic: %v\n%s", r, debug.Stack()), nil)
		}
	}()
	call()
}

func (p *Publisher) publish(
	topic string, msgs []*message.Message, find func([]*message.Message) (destination, error),
) error {
	if len(msgs) == 0 {
		return nil
	}
	rows := make([]row, 0, len(msgs))
	for i, m := range msgs {
		r, err := p.newRow(topic, m)
		if err != nil {
			return errorf("message %d of %d, %s, to topic %q: %w", i+1, len(msgs), uuid(m), topic, err)
		}
		rows = append(rows, r)
	}
	to, err := find(msgs)
	if err == nil {
		if to.owner != nil {
			for i, m := range msgs {
				rows[i].cause = causeOf(m)
			}
		}
		err = p.store(msgs[0].Context(), to, rows)
	}
	if err != nil {
		return errorf("%s to topic %q: %w", named(rows), topic, err)
	}
	return nil
}

// causeOf returns the name of the message in whose handling m was made, if its context says so.
func causeOf(m *message.Message) (cause sql.NullString) {
	if own := ambient.From(m.Context()); own.Cause != nil {
		cause = sql.NullString{String: own.Cause.String(), Valid: true}
	}
	return cause
}

func uuid(m *message.Message) string {
	if m == nil {
		return "nil"
	}
	return fmt.Sprintf("%q", m.UUID)
}

// store writes rows to the transaction that was found for them.
func (p *Publisher) store(ctx context.Context, to destination, rows []row) error {
	switch {
	case to.tx == nil && !to.alone && !p.config.Standalone:
		return ErrNoTx
	case ambient.Suppresses(ctx, len(rows)): // by a consumer of replayed messages
		return nil
	case to.tx == nil && p.closed.Load():
		return ErrClosed
	case to.tx == nil:
		return p.storeAlone(ctx, rows)
	}
	if err := p.storeFor(ctx, to, rows); err != nil {
		return p.unlike(to.owner, err)
	}
	if to.owner != nil {
		to.owner.AfterCommit(p, p.Wake)
		p.notElsewhere(to.owner) //nolint:contextcheck // it asks after the commit, when ctx may have ended
	}
	return nil
}

// aloneFor bounds a transaction of the publisher's own.
const aloneFor = 25 * time.Second

// storeAlone commits rows, also when ctx has ended: a router that closes has cancelled it, and
// yet the handler's work is done.
func (p *Publisher) storeAlone(ctx context.Context, rows []row) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aloneFor)
	defer cancel()
	if p.db.Dialect.CommitsOnDDL {
		if _, err := p.guardIn(ctx, p.db, p.guardOf(p.db.DB.DB)); err != nil {
			return database.Explain(err)
		}
	}
	var err error
	if one := chunk(rows); len(one) == len(rows) { // a single statement needs no transaction around it
		if _, err = p.db.Exec(ctx, p.insert(p.sql.InsertAlone, len(rows)), args(rows)...); err != nil {
			err = p.refused(ctx, rows, err)
		}
	} else {
		err = p.db.Write(ctx, func(tx *sqlx.Tx) error { return p.storeIn(ctx, tx, rows) })
	}
	if err != nil {
		return database.Explain(err)
	}
	p.Wake()
	return nil
}

// storeFor writes rows to a transaction that is not the publisher's own.
func (p *Publisher) storeFor(ctx context.Context, to destination, rows []row) error {
	to.saving.Lock()
	defer to.saving.Unlock()
	if err := p.stands(ctx, to); err != nil {
		return err
	}
	return p.storeIn(ctx, to.tx, rows)
}

// storeIn writes rows to a transaction that others may go on using and commit, so that a
// failure half-way must leave nothing behind.
func (p *Publisher) storeIn(ctx context.Context, tx Tx, rows []row) error {
	all := chunk(rows)
	if len(all) == len(rows) {
		return p.storeChunk(ctx, tx, rows)
	}
	if err := inTx(tx.ExecContext(ctx, `SAVEPOINT millrace_outbox`)); err != nil {
		return err
	}
	for rest := rows; len(rest) > 0; rest = rest[len(all):] {
		all = chunk(rest)
		if err := p.storeChunk(ctx, tx, all); errors.Is(err, ErrTxEnded) {
			return err
		} else if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", named(all), err), undo(ctx, tx))
		}
	}
	return inTx(tx.ExecContext(ctx, `RELEASE SAVEPOINT millrace_outbox`))
}

// storeChunk writes rows by one statement.
func (p *Publisher) storeChunk(ctx context.Context, tx Tx, rows []row) error {
	late := &flight.Late{What: func() string { return "store " + named(rows) }}
	_, err := tx.ExecContext(flight.With(ctx, late), p.insert(p.sql.Insert, len(rows)), args(rows)...)
	switch {
	case errors.Is(err, sql.ErrTxDone), dialect.Classify(err) == dialect.NoTransaction:
		return ErrTxEnded
	case err != nil:
		return p.refused(ctx, rows, err)
	}
	return nil
}

// undo takes back the statements before one that failed, also when ctx has ended: the
// transaction may live on. Where it does not, there is nothing to undo.
func undo(ctx context.Context, tx Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aloneFor)
	defer cancel()
	err := inTx(tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT millrace_outbox`))
	if errors.Is(err, ErrTxEnded) || errors.Is(err, ErrUnavailable) {
		return nil
	}
	return err
}

func inTx(_ sql.Result, err error) error {
	if errors.Is(err, sql.ErrTxDone) || dialect.Classify(err) == dialect.NoTransaction {
		return ErrTxEnded
	}
	return database.Explain(err)
}

// The most that one statement carries: far below what any of the databases can bind, and
// below the smallest packet that they take by default.
const (
	chunkRows  = 1000
	chunkBytes = 1 << 20
)

// chunk returns as many of the first rows as one statement carries, and at least one.
func chunk(rows []row) []row {
	n, size := 1, rows[0].size()
	for n < min(len(rows), chunkRows) && size+rows[n].size() <= chunkBytes {
		size += rows[n].size()
		n++
	}
	return rows[:dialect.AtOnce(n)]
}

// many identifies a statement that stores several rows.
type many struct {
	insert string
	rows   int
}

// insert returns the statement one, which stores one row, made to store n.
func (p *Publisher) insert(one string, n int) string {
	if n == 1 {
		return one
	}
	key := many{one, n}
	if statement, ok := p.inserts.Load(key); ok {
		return statement.(string)
	}
	statement := dialect.InsertMany(one, n)
	p.inserts.Store(key, statement)
	return statement
}

func args(rows []row) []any {
	all := make([]any, 0, len(rows)*len(rows[0].args()))
	for i := range rows {
		all = append(all, rows[i].args()...)
	}
	return all
}

// decorated is what a router publishes to.
type decorated struct {
	outbox *Publisher
	next   message.Publisher
}

// Publish stores msgs in a transaction of their own: one that they carry has ended by now.
func (d *decorated) Publish(topic string, msgs ...*message.Message) error {
	return d.outbox.publish(topic, msgs, func([]*message.Message) (destination, error) {
		return destination{alone: true}, nil
	})
}

// Close closes the publisher that the outbox replaces.
func (d *decorated) Close() error { return d.next.Close() }
