package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// WaitingAggregate is an aggregate with held messages, which wait for the version after Applied.
type WaitingAggregate struct {
	Consumer  string
	Epoch     int
	Aggregate string
	Held      Count     // messages
	Applied   int64     // the last applied version; if there is none, the one before the first
	Lowest    int64     // the lowest held version
	Since     time.Time // when the oldest counted message was stored
	Cursor    string    // for [Admin.Waiting], to begin after this one

	id []byte
}

// Waiting lists aggregates with held messages, by consumer and then by aggregate: at most limit
// aggregates (up to MaxPage) after the one with the given Cursor, which is "" to begin. It counts
// up to 100 messages of an aggregate.
func (a *Admin) Waiting(ctx context.Context, f ConsumerFilter, after string, limit int) ([]WaitingAggregate, error) {
	all, err := a.allWaiting(ctx, f, after, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox: list aggregates that wait: %w", database.Explain(err))
	}
	return all, nil
}

func (a *Admin) allWaiting(ctx context.Context, f ConsumerFilter, after string, limit int) (all []WaitingAggregate, err error) {
	if err := validPage(limit); err != nil {
		return nil, err
	}
	consumers, err := a.matching(ctx, f.filter())
	if err != nil {
		return nil, err
	}
	aggregate := []byte{}
	if after != "" {
		var id int32
		if id, aggregate, err = parseCursor(after); err != nil {
			return nil, err
		}
		i := slices.IndexFunc(consumers, func(c stored.Consumer) bool { return c.ID == id })
		if i < 0 {
			return nil, errCursor
		}
		consumers = consumers[i:]
	}
	for _, c := range consumers {
		found, err := a.waiting(ctx, c, aggregate, limit-len(all))
		if err != nil {
			return nil, err
		}
		if all = append(all, found...); len(all) == limit {
			break
		}
		aggregate = []byte{}
	}
	return all, nil
}

type waitingRow struct {
	Aggregate  []byte `db:"aggregate"`
	Version    int64  `db:"version"`
	ReceivedAt int64  `db:"received_at"`
}

// heldPage is how many held messages one query reads: of one aggregate more tell no more, and each is read from the table.
const heldPage = 100

// waiting reads the held messages of a consumer in the order of aggregates and versions, a page at
// a time. Of an aggregate with more than a page it reads the first page only.
func (a *Admin) waiting(ctx context.Context, c stored.Consumer, after []byte, limit int) (found []WaitingAggregate, err error) {
	for more := true; more && len(found) < limit; {
		var rows []waitingRow
		err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.Gate.SelectWaiting, c.ID, after, heldPage)
		if err != nil {
			return nil, err
		}
		groups := byAggregate(rows)
		if more = len(rows) == heldPage; more && len(groups) > 1 {
			groups = groups[:len(groups)-1] // it may continue: the next page begins with it
		}
		for _, group := range groups {
			a := newWaiting(c, group)
			a.Held.AtLeast = len(group) == heldPage
			found = append(found, a)
			after = a.id
		}
	}
	found = found[:min(len(found), limit)]
	return found, a.lookApplied(ctx, c, found)
}

// byAggregate splits sorted rows into one group for each aggregate.
func byAggregate(rows []waitingRow) (groups [][]waitingRow) {
	for len(rows) > 0 {
		n := slices.IndexFunc(rows, func(r waitingRow) bool { return !bytes.Equal(r.Aggregate, rows[0].Aggregate) })
		if n < 0 {
			n = len(rows)
		}
		groups = append(groups, rows[:n])
		rows = rows[n:]
	}
	return groups
}

func newWaiting(c stored.Consumer, group []waitingRow) WaitingAggregate {
	oldest := slices.MinFunc(group, func(a, b waitingRow) int { return cmp.Compare(a.ReceivedAt, b.ReceivedAt) })
	first := group[0]
	return WaitingAggregate{
		Consumer: string(c.Name), Epoch: c.Epoch, Aggregate: keycode.String(first.Aggregate),
		Held: Count{N: len(group)}, Lowest: first.Version, Since: time.UnixMicro(oldest.ReceivedAt).UTC(),
		Cursor: newCursor(c.ID, first.Aggregate), id: first.Aggregate,
	}
}

// lookApplied sets the applied versions.
func (a *Admin) lookApplied(ctx context.Context, c stored.Consumer, found []WaitingAggregate) error {
	if len(found) == 0 {
		return nil
	}
	ids := make([][]byte, 0, len(found))
	for _, a := range found {
		ids = append(ids, a.id)
	}
	query, args, err := a.rows.Dialect.In(a.rows.Dialect.Gate.SelectApplied, c.ID, ids)
	if err != nil {
		return err
	}
	var rows []struct {
		Aggregate []byte `db:"aggregate"`
		Version   int64  `db:"version"`
	}
	if err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, query, args...); err != nil {
		return err
	}
	applied := make(map[string]int64, len(rows))
	for _, row := range rows {
		applied[string(row.Aggregate)] = row.Version
	}
	for i := range found {
		found[i].Applied = applied[string(found[i].id)]
	}
	return nil
}

const errCursor = stored.CursorError("these consumers")

// A cursor is the number of a consumer and a stored aggregate.
func newCursor(consumer int32, aggregate []byte) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(consumer)) //nolint:gosec // consumers have positive ids
	return base64.RawURLEncoding.EncodeToString(append(b, aggregate...))
}

func parseCursor(cursor string) (consumer int32, aggregate []byte, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) < 4 {
		return 0, nil, errCursor
	}
	return int32(binary.BigEndian.Uint32(b)), b[4:], nil //nolint:gosec // it was made of one
}
