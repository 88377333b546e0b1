package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// sessions holds connections, each from the next node.
func (t *Trial) sessions(ctx context.Context, n int, use func([]*sqlx.Conn) (string, error)) (found string, err error) {
	var all []*sqlx.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close() // goes back to the pool
		}
	}()
	for i := range max(n, len(t.nodes)) {
		c, err := t.node(i).Connx(ctx)
		if err != nil {
			return "", err
		}
		all = append(all, c)
	}
	return use(all)
}

// idsInOrder: of two transactions of which one begins after the other was committed, the later has the higher ids.
func idsInOrder(ctx context.Context, t *Trial) (string, error) {
	return t.sessions(ctx, 3, func(all []*sqlx.Conn) (string, error) {
		before := int64(math.MinInt64)
		for i := range 10 * len(all) {
			id, err := t.insert(ctx, all[i%len(all)], fmt.Sprint("order-", i))
			if err != nil {
				return "", err
			}
			if id <= before {
				return fmt.Sprintf("a row that was stored after row %d was committed got the id %d", before, id), nil
			}
			before = id
		}
		return "", nil
	})
}

// insert stores a message in a transaction on a connection, and returns its id.
func (t *Trial) insert(ctx context.Context, c *sqlx.Conn, uuid string) (id int64, err error) {
	tx, err := c.BeginTxx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // it has ended, or another error says why
	if _, err := tx.ExecContext(ctx, t.sql.Outbox.Insert, 1, "order", "key", uuid, nil, nil, nil, nil); err != nil {
		return 0, err
	}
	if err := tx.GetContext(ctx, &id, tx.Rebind(`SELECT id FROM `+t.table("outbox")+` WHERE uuid = ?`), uuid); err != nil {
		return 0, err
	}
	return id, tx.Commit()
}

func (t *Trial) table(name string) string {
	if t.Schema != "" {
		return `"` + t.Schema + `".` + t.prefix + name
	}
	return t.prefix + name
}

// tolerance is how far the clocks of nodes may be apart.
const tolerance = 100 * time.Millisecond

// oneClock: the time of all connections is one, and goes on within a transaction.
func oneClock(ctx context.Context, t *Trial) (string, error) {
	return t.sessions(ctx, 3, func(all []*sqlx.Conn) (string, error) {
		var latest, back int64
		for i := range 10 * len(all) {
			var now int64
			if err := all[i%len(all)].GetContext(ctx, &now, t.sql.Now); err != nil {
				return "", err
			}
			latest, back = max(latest, now), max(back, latest-now)
		}
		if apart := time.Duration(back) * time.Microsecond; apart > tolerance {
			return fmt.Sprintf("the clocks of two connections are %v apart", apart), nil
		}
		tx, err := all[0].BeginTxx(ctx, nil)
		if err != nil {
			return "", err
		}
		defer tx.Rollback() //nolint:errcheck // it has only read
		var before, after int64
		if err := tx.GetContext(ctx, &before, t.sql.Now); err != nil {
			return "", err
		}
		if err := rest(ctx); err != nil {
			return "", err
		}
		if err := tx.GetContext(ctx, &after, t.sql.Now); err != nil {
			return "", err
		}
		if after-before < (10 * time.Millisecond).Microseconds() {
			return "the clock stands still within a transaction", nil
		}
		return "", nil
	})
}

// keysAreBytes: keys that differ by a letter's case or by a space at the end are different.
func keysAreBytes(ctx context.Context, t *Trial) (string, error) {
	for _, key := range []string{"key", "KEY", "key ", "k\x00y", "k\xffy"} {
		if n, err := t.in(ctx, 0, t.claim(5, key)); err != nil || n != 1 {
			if err == nil {
				return fmt.Sprintf("%q counts as the same key as another one", key), nil
			}
			return "", err
		}
	}
	return "", nil
}

// duplicatesAreCounted: a claim says whether it was the first, by the number of rows that the server reports.
func duplicatesAreCounted(ctx context.Context, t *Trial) (string, error) {
	for i, want := range []int64{1, 0} {
		n, err := t.in(ctx, i, t.claim(6, "once"))
		if err != nil {
			return "", err
		}
		if n != want {
			return fmt.Sprintf("claim %d of a key counts %d new rows", i+1, n), nil
		}
	}
	return "", nil
}

// claimsAndAdvances: the statement that claims a message advances its aggregate if, and only if, the claim is new and
// the version is the next.
func claimsAndAdvances(ctx context.Context, t *Trial) (string, error) {
	aggregate := []byte("aggregate")
	if _, err := t.node(0).ExecContext(ctx, t.sql.Gate.SetVersion, 9, aggregate, 1, 1, 1, []byte{}); err != nil {
		return "", err
	}
	for i, step := range []struct {
		key                   string
		version, rows, leaves int64
	}{{"a", 2, 2, 2}, {"a", 3, 0, 2}, {"b", 4, 1, 2}, {"c", 3, 2, 3}} {
		n, err := t.in(ctx, i, func(ctx context.Context, tx *sqlx.Tx) (int64, error) {
			return database.Affected(tx.ExecContext(ctx, t.sql.Gate.ClaimAndAdvance, 9, []byte(step.key), 1, 1, step.version, aggregate, step.version-1))
		})
		if err != nil {
			return refused(err)
		}
		var row stored.Aggregate
		if err := row.Scan(t.node(0).QueryRowContext(ctx, t.sql.Gate.SelectAggregate, 9, aggregate)); err != nil {
			return "", err
		}
		if n != step.rows || row.Version != step.leaves {
			return fmt.Sprintf("statement %d reports %d rows instead of %d, and leaves version %d instead of %d", i+1, n, step.rows, row.Version, step.leaves), nil
		}
	}
	return "", nil
}

// leasesAreKept: an upsert decides by the row that is there.
func leasesAreKept(ctx context.Context, t *Trial) (string, error) {
	for _, token := range []int{1, 2} {
		if _, err := t.node(token).ExecContext(ctx, t.sql.AcquireLease, 1, []byte("lease"), token, time.Hour.Microseconds()); err != nil {
			return "", err
		}
	}
	var lease struct{ Token, Remaining int64 }
	if err := t.node(0).GetContext(ctx, &lease, t.sql.SelectLease, 1, []byte("lease")); err != nil {
		return "", err
	}
	if lease.Token != 1 {
		return "a lease that has not ended is given to another holder", nil
	}
	return "", nil
}

// notices: a notice reaches a connection that listens.
func notices(ctx context.Context, t *Trial) (string, error) {
	c, err := t.node(0).Connx(ctx)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // the pool discards it
	found := ""
	err = c.Raw(func(inner any) error {
		driver, is := inner.(*stdlib.Conn)
		if !is {
			return errors.New("the driver does not pass notices on")
		}
		conn := driver.Conn()
		if _, err := conn.Exec(ctx, t.sql.Outbox.Listen); err != nil {
			found = err.Error()
			return nil
		}
		if _, err := t.node(1).ExecContext(ctx, t.sql.Outbox.Notify+`, 'tried'`); err != nil {
			found = err.Error()
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, t.Patience/3)
		defer cancel()
		for { // a pooler may pass on one that another try has left
			notice, err := conn.WaitForNotification(ctx)
			if err != nil {
				found = "a notice does not arrive"
			}
			if err != nil || notice.Payload == "tried" {
				return errListens
			}
		}
	})
	if errors.Is(err, errListens) {
		err = nil
	}
	return found, err
}

// errListens has the pool give up a connection that listens.
var errListens = errors.New("it listens")
