package ambient

import "errors"

// ErrBusy says that rows or a batch of the handler's have the connection.
var ErrBusy = errors.New("pgxdb: rows or a batch of the transaction are still open: close them first")

// Lend lends the connection to rows or a batch of the handler's until [Tx.Return]. It reports false if others have it.
func (t *Tx) Lend() bool { return t.lent.CompareAndSwap(false, true) }

// Return ends a loan.
func (t *Tx) Return() {
	t.reclaim.Store(nil)
	t.lent.Store(false)
}

// Lent reports whether the connection is lent, so that database/sql would let a statement wait.
func (t *Tx) Lent() bool { return t.lent.Load() }

// OnReclaim sets what ends the loan before its time.
func (t *Tx) OnReclaim(end func()) { t.reclaim.Store(&end) }

// Reclaim ends a loan that the handler has left: no statement would get the connection.
func (t *Tx) Reclaim() {
	if end := t.reclaim.Load(); end != nil {
		(*end)()
	}
}

// GiveUp rolls the transaction back: a part of it that the handler has given up is still there.
func (t *Tx) GiveUp() {
	_ = t.tx.Rollback() // who commits is told
}
