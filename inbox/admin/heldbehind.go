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

// sayHeldBehind logs where messages are held behind discarded ones: nothing releases them, because
// the versions of the discarded messages are never applied. It knows the version of a message from
// the gate's note or from the metadata, since other sources are known only to the gate of its
// handler. It reads each aggregate once.
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
		a.log.Error("inbox: could not look for messages held behind a discarded one", database.Explain(behind.err), about)
	case behind.waiting > 0 && behind.version < v.Number:
		a.log.Error("inbox: messages stay held behind one that was discarded",
			fmt.Errorf("call Admin.SetVersion with %d, or millrace set-version, once its effect is there, or is not needed", v.Number),
			about.Add(watermill.LogFields{"count": behind.waiting}))
	}
}

// versions returns the versions that the message is known to bring.
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

// heldBehind is the state of an aggregate.
type heldBehind struct {
	version int64
	waiting int // messages held for it, up to mostCounted
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
	b.err = db.QueryRowxContext(ctx, a.rows.Dialect.Gate.CountHeld, consumer, aggregate, mostCounted).Scan(&aggregate, &b.waiting)
	if errors.Is(b.err, sql.ErrNoRows) {
		b.err = nil // it holds none
	}
	return b
}

// mostCounted is where counting held messages stops.
const mostCounted = 1000
