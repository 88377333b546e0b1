// Package ambient carries in a context the transaction of a handler, and whether the messages that
// the handler publishes are suppressed.
package ambient

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
)

// Tx is the transaction of one run of a handler, as one message of the run has it.
type Tx struct {
	// Owner began the transaction for the handler.
	Owner any

	// Cause names the message that the transaction handles, in the form of [Cause]; nil if unknown.
	Cause fmt.Stringer

	results atomic.Pointer[[]byte]
	*run
}

// run is what all messages of one run of a handler share.
type run struct {
	// Ended reports whether the driver knows that some statement ended the transaction; nil if the
	// driver cannot tell.
	Ended func() bool

	// Saving is locked while a savepoint with our name is set: a second one would replace it.
	Saving sync.Mutex

	tx *sqlx.Tx
	db *sql.DB

	taken atomic.Int64 // how often the handler asked for it
	ended atomic.Bool
	Runs

	lent    atomic.Bool            // to rows or a batch
	reclaim atomic.Pointer[func()] // ends the loan

	mu     sync.Mutex
	hooks  []func()
	hooked map[any]struct{}
}

type key struct{}

// Cause names the message with this key and its consumer, in text that every database stores
// unchanged.
func Cause(consumer, key string) string {
	const replacement = "\uFFFD"
	return strings.ReplaceAll(strings.ToValidUTF8(consumer+"/"+key, replacement), "\x00", replacement)
}

// New wraps tx, a transaction on db.
func New(tx *sqlx.Tx, db *sqlx.DB) *Tx {
	t := &struct { // one allocation
		tx  Tx
		run run
	}{}
	t.run.tx, t.run.db = tx, db.DB
	t.tx.run = &t.run
	return &t.tx
}

// For returns the same transaction for one of several messages that the handler gets at once.
func (t *Tx) For(owner any, cause fmt.Stringer) *Tx {
	return &Tx{Owner: owner, Cause: cause, run: t.run}
}

// Same reports whether t and other are one transaction.
func (t *Tx) Same(other *Tx) bool {
	return t == other || t != nil && other != nil && t.run == other.run
}

// With puts t into ctx.
func With(ctx context.Context, t *Tx) context.Context { return context.WithValue(ctx, key{}, t) }

// From returns the transaction in ctx, even if it has ended, and nil if there is none.
func From(ctx context.Context) *Tx {
	t, _ := ctx.Value(key{}).(*Tx)
	return t
}

// Take returns the transaction for the handler, or false once it has ended.
func (t *Tx) Take() (*sqlx.Tx, bool) {
	if t.ended.Load() {
		return nil, false
	}
	t.taken.Add(1)
	return t.tx, true
}

// Live returns the transaction if it is on db and has not ended. It does not count as use by the
// handler.
func (t *Tx) Live(db *sqlx.DB) (*sqlx.Tx, bool) {
	if t == nil || t.ended.Load() || t.db != db.DB {
		return nil, false
	}
	return t.tx, true
}

// Pool returns the pool of the transaction.
func (t *Tx) Pool() *sql.DB { return t.db }

// Driver returns the name of the driver of the transaction.
func (t *Tx) Driver() string { return t.tx.DriverName() }

// Open reports whether the transaction has not ended, whatever its pool.
func (t *Tx) Open() bool { return t != nil && !t.ended.Load() }

// EndedUnderneath reports whether some statement is known to have ended the transaction.
func (t *Tx) EndedUnderneath() bool { return t != nil && t.Ended != nil && t.Ended() }

// Taken reports whether the handler asked for the transaction.
func (t *Tx) Taken() bool { return t.Takes() > 0 }

// Takes returns how often somebody took the transaction.
func (t *Tx) Takes() int64 { return t.taken.Load() }

// End makes every later Take return false, and ends a loan.
func (t *Tx) End() {
	t.ended.Store(true)
	t.Reclaim()
}

// AfterCommit calls f after the commit. For each owner only the first f is called.
func (t *Tx) AfterCommit(owner any, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.hooked[owner]; known {
		return
	}
	if t.hooked == nil {
		t.hooked = make(map[any]struct{})
	}
	t.hooked[owner] = struct{}{}
	t.hooks = append(t.hooks, f)
}

// Committed runs the functions of [Tx.AfterCommit], once: the transaction was committed.
func (t *Tx) Committed() {
	t.mu.Lock()
	hooks := t.hooks
	t.hooks = nil
	t.mu.Unlock()
	for _, f := range hooks {
		f()
	}
}

// SetResult sets the result that is stored with the claim.
func (t *Tx) SetResult(body []byte) { t.results.Store(&body) }

// Result returns the result that SetResult set, nil if there is none.
func (t *Tx) Result() []byte {
	if p := t.results.Load(); p != nil {
		return *p
	}
	return nil
}
