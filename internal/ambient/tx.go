// Package ambient carries the transaction of a handler in its context, and whether what the
// handler sends is suppressed.
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

// Tx is a transaction that lives as long as one run of a handler.
type Tx struct {
	// Owner is who began it on behalf of the handler.
	Owner any

	// Cause says what it is for, as [Cause] writes it; nil where nobody said.
	Cause fmt.Stringer

	// Ended tells whether some statement ended it, as far as the driver was told; nil where
	// nobody can say.
	Ended func() bool

	// Saving is held by who has set a savepoint with a name of ours: another one would replace it.
	Saving sync.Mutex

	tx *sqlx.Tx
	db *sql.DB

	taken   atomic.Bool // the handler asked for it
	ended   atomic.Bool
	calls   atomic.Int32 // of the innermost handler
	failed  atomic.Value // error of the innermost handler, boxed
	results atomic.Pointer[[]byte]

	mu     sync.Mutex
	hooks  []func()
	hooked map[any]struct{}
}

type key struct{}

type boxed struct{ err error }

// Cause names the message with this key, handled by consumer, in text that every database
// stores as it is.
func Cause(consumer, key string) string {
	const replacement = "\uFFFD"
	return strings.ReplaceAll(strings.ToValidUTF8(consumer+"/"+key, replacement), "\x00", replacement)
}

// New wraps tx, which was begun on db.
func New(tx *sqlx.Tx, db *sqlx.DB) *Tx { return &Tx{tx: tx, db: db.DB} }

// With puts t into ctx.
func With(ctx context.Context, t *Tx) context.Context { return context.WithValue(ctx, key{}, t) }

// From returns the transaction in ctx, ended or not, and nil if there is none.
func From(ctx context.Context) *Tx {
	t, _ := ctx.Value(key{}).(*Tx)
	return t
}

// Take returns the transaction for use by the handler, or false once it has ended.
func (t *Tx) Take() (*sqlx.Tx, bool) {
	if t.ended.Load() {
		return nil, false
	}
	t.taken.Store(true)
	return t.tx, true
}

// Live returns the transaction if it was begun on db and has not ended, without counting
// as use by the handler.
func (t *Tx) Live(db *sqlx.DB) (*sqlx.Tx, bool) {
	if t == nil || t.ended.Load() || t.db != db.DB {
		return nil, false
	}
	return t.tx, true
}

// Open reports whether the transaction, on whatever pool, has not ended.
func (t *Tx) Open() bool { return t != nil && !t.ended.Load() }

// EndedUnderneath reports whether some statement is known to have ended the transaction.
func (t *Tx) EndedUnderneath() bool { return t != nil && t.Ended != nil && t.Ended() }

// Taken reports whether the handler asked for the transaction.
func (t *Tx) Taken() bool { return t.taken.Load() }

// End makes every later Take fail.
func (t *Tx) End() { t.ended.Store(true) }

// Called counts a run of the innermost handler and returns how many there were before.
func (t *Tx) Called() int { return int(t.calls.Add(1)) - 1 }

// Failed records the error with which the innermost handler ended.
func (t *Tx) Failed(err error) { t.failed.Store(boxed{err}) }

// Failure returns the error of the innermost handler, nil if it had none.
func (t *Tx) Failure() error {
	b, _ := t.failed.Load().(boxed)
	return b.err
}

// AfterCommit has f called when the transaction was committed; once, however often it is
// asked for on behalf of the same owner.
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

// Committed says that the transaction was committed.
func (t *Tx) Committed() {
	t.mu.Lock()
	hooks := t.hooks
	t.mu.Unlock()
	for _, f := range hooks {
		f()
	}
}

// SetResult keeps body to be stored with the claim.
func (t *Tx) SetResult(body []byte) { t.results.Store(&body) }

// Result returns what SetResult kept, and nil if it was not called.
func (t *Tx) Result() []byte {
	if p := t.results.Load(); p != nil {
		return *p
	}
	return nil
}
