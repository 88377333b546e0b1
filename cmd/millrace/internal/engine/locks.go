package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// result is what came of a statement in a second transaction.
type result struct {
	n   int64 // what it returned
	err error
}

// behind runs do in a second transaction while the first one, which first began, is open; end ends the first. It
// returns what the second did wrong, and what came of it. A second transaction that the server ends after the first
// has ended, as one that could not be put in order, is repeated as Millrace repeats it.
func (t *Trial) behind(
	ctx context.Context, first, do func(context.Context, *sqlx.Tx) (int64, error), commit bool,
) (found string, n int64, err error) {
	tx, err := t.node(0).Begin(ctx)
	if err != nil {
		return "", 0, err
	}
	defer tx.Rollback() //nolint:errcheck // it has ended, or another error says why
	if _, err := first(ctx, tx.Tx); err != nil {
		return "", 0, err
	}
	second := make(chan result, 1)
	attempt := func() {
		n, err := t.in(ctx, 1, do)
		second <- result{n, err}
	}
	go attempt()
	select {
	case r := <-second:
		if r.err != nil {
			return fmt.Sprintf("the second transaction fails while the first is open: %v", r.err), 0, nil
		}
		return "the second transaction does not wait for the first", 0, nil
	case <-time.After(t.Wait):
	}
	if commit {
		err = tx.Commit()
	} else {
		err = tx.Rollback()
	}
	if err != nil && !contended(err) {
		return "", 0, fmt.Errorf("end the first transaction: %w", err)
	}
	if err != nil {
		return fmt.Sprintf("the first transaction cannot be committed because a second one waits for it: %v", err), 0, nil
	}
	late := time.After(patience)
	for range 10 {
		select {
		case r := <-second:
			if !contended(r.err) {
				return "", r.n, r.err
			}
			err = r.err
			go attempt()
		case <-late:
			return fmt.Sprintf("the second transaction still waits %v after the end of the first", patience), 0, nil
		}
	}
	return fmt.Sprintf("the second transaction fails again and again: %v", err), 0, nil
}

// in runs do in a transaction of its own, and commits it.
func (t *Trial) in(ctx context.Context, node int, do func(context.Context, *sqlx.Tx) (int64, error)) (int64, error) {
	tx, err := t.node(node).Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // it has ended, or another error says why
	n, err := do(ctx, tx.Tx)
	if err != nil {
		return 0, err
	}
	return n, tx.Commit()
}

// claim returns 1 if it claimed the key, and 0 if that is claimed already and can be looked up.
func (t *Trial) claim(consumer int, key string) func(context.Context, *sqlx.Tx) (int64, error) {
	token := t.token()
	return func(ctx context.Context, tx *sqlx.Tx) (int64, error) {
		done, err := tx.ExecContext(ctx, t.sql.Claim, consumer, []byte(key), 1, token)
		if err != nil {
			return 0, err
		}
		if n, err := done.RowsAffected(); err != nil || n == 1 {
			return n, err
		}
		var known []struct{ Result, Token int64 }
		err = tx.SelectContext(ctx, &known, t.sql.SelectClaim, consumer, []byte(key))
		if err == nil && len(known) != 1 {
			err = errors.New("the claim that conflicts is not to be seen")
		}
		return 0, err
	}
}

func copyWaitsForCommit(ctx context.Context, t *Trial) (string, error) {
	found, n, err := t.behind(ctx, t.claim(1, "committed"), t.claim(1, "committed"), true)
	if found == "" && err == nil && n != 0 {
		found = "both transactions have the claim"
	}
	return found, err
}

func copyTakesOverAfterRollback(ctx context.Context, t *Trial) (string, error) {
	found, n, err := t.behind(ctx, t.claim(1, "rolled back"), t.claim(1, "rolled back"), false)
	if found == "" && err == nil && n != 1 {
		found = "nobody has the claim: the second transaction finds the key of one that was rolled back"
	}
	return found, err
}

// waitedSeesTheRow: an UPDATE that waited works on the row as the other transaction left it.
func waitedSeesTheRow(ctx context.Context, t *Trial) (string, error) {
	open := func(ctx context.Context, tx *sqlx.Tx) (int64, error) {
		_, err := tx.ExecContext(ctx, t.sql.OpenClaim, 2, []byte("open"), 1, 1)
		return 0, err
	}
	if _, err := t.in(ctx, 0, open); err != nil {
		return "", err
	}
	found, _, err := t.behind(ctx, open, open, true)
	if found != "" || err != nil {
		return found, err
	}
	var claim struct{ Result, Token int64 }
	if err := t.node(0).GetContext(ctx, &claim, t.sql.SelectClaim, 2, []byte("open")); err != nil {
		return "", err
	}
	if claim.Token != 3 {
		return fmt.Sprintf("a change was lost: 1 was raised twice to %d", claim.Token), nil
	}
	return "", nil
}

// rereads: a transaction sees what was committed since its first statement.
func rereads(ctx context.Context, t *Trial) (string, error) {
	tx, err := t.node(0).Begin(ctx)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() //nolint:errcheck // it has only read
	read := func() (n int, err error) {
		var rows []struct{ Result, Token int64 }
		err = tx.SelectContext(ctx, &rows, t.sql.SelectClaim, 3, []byte("later"))
		return len(rows), err
	}
	if _, err := read(); err != nil {
		return "", err
	}
	if _, err := t.in(ctx, 1, t.claim(3, "later")); err != nil {
		return "", err
	}
	for began := time.Now(); time.Since(began) < patience/2; { // another node may be late
		if n, err := read(); err != nil || n == 1 {
			return "", err
		}
		if err := rest(ctx); err != nil {
			return "", err
		}
	}
	return "a transaction that asks for READ COMMITTED does not see what was committed after its first statement", nil
}

func skipsLocked(ctx context.Context, t *Trial) (string, error) {
	for _, key := range []string{"locked", "free"} {
		if _, err := t.in(ctx, 0, t.claim(4, key)); err != nil {
			return "", err
		}
	}
	lock := func(ctx context.Context, tx *sqlx.Tx, keys ...[]byte) (rows []struct {
		Key       []byte `db:"message_id"`
		Processed int64  `db:"processed_at"`
		Result    int64
	}, err error) {
		query, args, err := t.sql.In(t.sql.LockExpired, 4, keys, int64(1)<<62)
		if err == nil {
			err = tx.SelectContext(ctx, &rows, query, args...)
		}
		return rows, err
	}
	first, err := t.node(0).Begin(ctx)
	if err != nil {
		return "", err
	}
	defer first.Rollback() //nolint:errcheck // it has only locked
	if rows, err := lock(ctx, first.Tx, []byte("locked")); err != nil || len(rows) != 1 {
		return fmt.Sprintf("%d rows are found where one is free", len(rows)), err
	}
	ctx, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	second, err := t.node(0).Begin(ctx) // on the same node: locks of rows are often known to one alone
	if err != nil {
		return "", err
	}
	defer second.Rollback() //nolint:errcheck // it has only locked
	rows, err := lock(ctx, second.Tx, []byte("locked"), []byte("free"))
	switch {
	case ctx.Err() != nil:
		return "a locked row is waited for", nil
	case err != nil:
		return refused(err)
	case len(rows) != 1 || string(rows[0].Key) != "free":
		return fmt.Sprintf("%d rows are found where one of two is locked", len(rows)), nil
	}
	return "", nil
}

func migrationsExclude(ctx context.Context, t *Trial) (string, error) {
	lock := func(ctx context.Context, tx *sqlx.Tx) (int64, error) {
		_, err := tx.ExecContext(ctx, t.sql.LockMigrations)
		return 0, err
	}
	found, _, err := t.behind(ctx, lock, lock, true)
	if found == "" && err != nil {
		return refused(err)
	}
	return found, err
}

func rest(ctx context.Context) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
