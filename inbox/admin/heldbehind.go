package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// sayHeldBehind says so where messages are held for some that were discarded: nothing releases them, since their
// versions are not applied. Beside what the gate noted only the fields of the metadata are looked at: which
// version a message brings is known to the gate of its handler. Each aggregate is looked at once.
func (a *Admin) sayHeldBehind(ctx context.Context, rows ...stored.Message) {
	type aggregate struct {
		consumer int32
		id       string
	}
	looked := make(map[aggregate]heldBehind)
	for _, row := range rows {
		for _, v := range versions(row) {
			behind, known := looked[aggregate{row.Consumer, v.Aggregate}]
			if !known {
				behind = a.heldBehind(ctx, row, v)
				looked[aggregate{row.Consumer, v.Aggregate}] = behind
			}
			a.sayBehind(row, v, behind)
		}
	}
}

func (a *Admin) sayBehind(row stored.Message, v inbox.Version, behind heldBehind) {
	switch about := row.Fields().Add(watermill.LogFields{"aggregate": v.Aggregate, "version": v.Number}); {
	case behind.err != nil:
		a.log.Error("inbox: what is held behind a discarded message could not be looked at", database.Explain(behind.err), about)
	case behind.waiting > 0 && behind.version < v.Number:
		a.log.Error("inbox: messages stay held behind one that was discarded",
			fmt.Errorf("call Admin.SetVersion with %d once its effect is there, or is not wanted", v.Number),
			about.Add(watermill.LogFields{"count": behind.waiting}))
	}
}

// versions returns what is known of the versions that the message brings.
func versions(row stored.Message) []inbox.Version {
	if row.Aggregate != nil {
		return []inbox.Version{{Aggregate: keycode.String(row.Aggregate), Number: row.Version.Int64}}
	}
	msg, err := row.With(nil)
	if err != nil {
		return nil
	}
	found, err := inbox.VersionFromMetadata()(msg)
	if err != nil {
		return nil
	}
	return found
}

// heldBehind is how an aggregate is.
type heldBehind struct {
	version int64
	waiting int // for it to advance; not counted on for ever
	err     error
}

func (a *Admin) heldBehind(ctx context.Context, message stored.Message, v inbox.Version) (b heldBehind) {
	consumer, aggregate := message.Consumer, message.Aggregate
	if aggregate == nil {
		aggregate = keycode.Encode(v.Aggregate)
	}
	var row stored.Aggregate
	db := a.rows.Reader(ctx)
	b.version = math.MinInt64
	switch b.err = row.Scan(db.QueryRowxContext(ctx, a.rows.Dialect.Gate.SelectAggregate, consumer, aggregate)); {
	case b.err == nil:
		b.version = row.Version
	case !errors.Is(b.err, sql.ErrNoRows):
		return b
	}
	b.err = db.QueryRowxContext(ctx, a.rows.Dialect.Gate.CountHeld, consumer, aggregate, mostCounted).Scan(&b.waiting)
	return b
}

// mostCounted is up to what it is counted how much waits behind a message.
const mostCounted = 1000
