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

// pair is what two transactions that met came to.
type pair struct {
	first, second int64 // what they returned
	late          bool  // the second did not wait: the server finds conflicts at COMMIT
}

// lateConflicts is what is found of a server where that holds. Nothing is done twice on it.
const lateConflicts = "the second transaction does not wait: one of the two fails at its COMMIT"

// meet runs do in a second transaction while the first one, which first began, is open, then ends the first. It returns
// what the second did wrong, and what came of both. A transaction that the server ends since it could not be put in
// order is repeated, as Millrace repeats it.
func (t *Trial) meet(
	ctx context.Context, first, do func(context.Context, *sqlx.Tx) (int64, error), commit bool,
) (found string, p pair, err error) {
	tx, err := t.node(0).Begin(ctx)
	if err != nil {
		return "", p, err
	}
	defer tx.Rollback() //nolint:errcheck // it has ended, or another error says why
	if p.first, err = first(ctx, tx.Tx); err != nil {
		return "", p, err
	}
	second := make(chan result, 1)
	attempt := func() {
		n, err := t.once(ctx, 1, do)
		second <- result{n, err}
	}
	go attempt()
	wait := time.After(t.Wait)
	for failures, waits := 0, false; !p.late && !waits; {
		select {
		case r := <-second:
			switch {
			case r.err == nil:
				p.second, p.late = r.n, true
			case !contended(r.err):
				return "", p, r.err
			case failures > 0: // the first may be due to what another node still had to do
				return fmt.Sprintf("the second transaction fails while the first is open: %v", r.err), p, nil
			default:
				failures++
				wait = time.After(t.Wait)
				go attempt()
			}
		case <-wait:
			waits = true
		}
	}
	if !commit {
		if err = tx.Rollback(); contended(err) {
			err = nil // it has ended
		}
	} else if err = tx.Commit(); contended(err) {
		p.late = true
		p.first, err = t.in(ctx, 0, first)
	} else if p.late && err == nil {
		return "the second transaction does not wait for the first, and both are committed", p, nil
	}
	if err != nil {
		return "", p, fmt.Errorf("end the first transaction: %w", err)
	}
	if p.late {
		return "", p, nil
	}
	late := time.After(t.Patience)
	for range 10 {
		select {
		case r := <-second:
			if !contended(r.err) {
				p.second = r.n
				return "", p, r.err
			}
			err = r.err
			go attempt()
		case <-late:
			return fmt.Sprintf("the second transaction still waits %v after the end of the first", t.Patience), p, nil
		}
	}
	return fmt.Sprintf("the second transaction fails again and again: %v", err), p, nil
}

// in runs do in a transaction of its own, and commits it. It repeats one that could not be put in order.
func (t *Trial) in(ctx context.Context, node int, do func(context.Context, *sqlx.Tx) (int64, error)) (n int64, err error) {
	for range 10 {
		if n, err = t.once(ctx, node, do); !contended(err) {
			break
		}
	}
	return n, err
}

// once is in without repetition.
func (t *Trial) once(ctx context.Context, node int, do func(context.Context, *sqlx.Tx) (int64, error)) (int64, error) {
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
	key := fmt.Sprint(t.token())
	found, p, err := t.meet(ctx, t.claim(1, key), t.claim(1, key), true)
	if found == "" && err == nil && p.first+p.second != 1 {
		found = fmt.Sprintf("%d of two transactions have the claim", p.first+p.second)
	}
	return p.judged(found, err)
}

func copyTakesOverAfterRollback(ctx context.Context, t *Trial) (string, error) {
	key := fmt.Sprint(t.token())
	found, p, err := t.meet(ctx, t.claim(1, key), t.claim(1, key), false)
	if found == "" && err == nil && p.second != 1 {
		found = "nobody has the claim: the second transaction finds the key of one that was rolled back"
	}
	return p.judged(found, err)
}

// judged adds to what was found that conflicts are found late.
func (p pair) judged(found string, err error) (string, error) {
	if found == "" && err == nil && p.late {
		found = lateConflicts
	}
	return found, err
}

// waitedSeesTheRow: an UPDATE that waited works on the row as the other transaction left it.
func waitedSeesTheRow(ctx context.Context, t *Trial) (string, error) {
	key := []byte(fmt.Sprint(t.token()))
	open := func(ctx context.Context, tx *sqlx.Tx) (int64, error) {
		_, err := tx.ExecContext(ctx, t.sql.OpenClaim, 2, key, 1, 1)
		return 0, err
	}
	if _, err := t.in(ctx, 0, open); err != nil {
		return "", err
	}
	found, p, err := t.meet(ctx, open, open, true)
	if found != "" || err != nil {
		return found, err
	}
	var claim struct{ Result, Token int64 }
	if err := t.node(0).GetContext(ctx, &claim, t.sql.SelectClaim, 2, key); err != nil {
		return "", err
	}
	if claim.Token != 3 {
		return fmt.Sprintf("a change was lost: 1 was raised twice to %d", claim.Token), nil
	}
	return p.judged("", nil)
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
	for began := time.Now(); time.Since(began) < t.Patience/2; { // another node may be late
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
	ctx, cancel := context.WithTimeout(ctx, t.Patience/2)
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
	found, _, err := t.meet(ctx, lock, lock, true)
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
