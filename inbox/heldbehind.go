package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// sayHeldBehind says so where messages are held for some that were discarded: nothing releases them, since their
// versions are not applied. Beside what the gate noted only the fields of the metadata are looked at: which
// version a message brings is known to the gate of its handler. Each aggregate is looked at once.
func (s *Store) sayHeldBehind(ctx context.Context, rows ...messageRow) {
	type aggregate struct {
		consumer int32
		id       string
	}
	looked := make(map[aggregate]heldBehind)
	for _, row := range rows {
		for _, v := range row.versions() {
			behind, known := looked[aggregate{row.Consumer, string(v.id)}]
			if !known {
				behind = s.heldBehind(ctx, row.Consumer, v.id)
				looked[aggregate{row.Consumer, string(v.id)}] = behind
			}
			s.sayBehind(row, v, behind)
		}
	}
}

func (s *Store) sayBehind(row messageRow, v versioned, behind heldBehind) {
	switch about := row.fields().Add(watermill.LogFields{"aggregate": v.Aggregate, "version": v.Number}); {
	case behind.err != nil:
		s.log.Error("inbox: what is held behind a discarded message could not be looked at", database.Explain(behind.err), about)
	case behind.waiting > 0 && behind.version < v.Number:
		s.log.Error("inbox: messages stay held behind one that was discarded",
			fmt.Errorf("call Store.SetVersion with %d once its effect is there, or is not wanted", v.Number),
			about.Add(watermill.LogFields{"count": behind.waiting}))
	}
}

// versions returns what is known of the versions that the message brings.
func (r *messageRow) versions() []versioned {
	if r.Aggregate != nil {
		return []versioned{{Version{keycode.String(r.Aggregate), r.Version.Int64}, r.Aggregate}}
	}
	msg := message.NewMessage("", nil)
	var err error
	if msg.Metadata, err = r.decoded(); err != nil {
		return nil
	}
	found, err := VersionFromMetadata()(msg)
	if err != nil {
		return nil
	}
	all, err := ordered(found)
	if err != nil {
		return nil
	}
	return all
}

// heldBehind is how an aggregate is.
type heldBehind struct {
	version int64
	waiting int // for it to advance; not counted on for ever
	err     error
}

func (s *Store) heldBehind(ctx context.Context, consumer int32, aggregate []byte) (b heldBehind) {
	var row aggregateRow
	db := s.db.Reader(ctx)
	b.version = math.MinInt64
	switch b.err = row.scan(db.QueryRowxContext(ctx, s.dialect.Gate.SelectAggregate, consumer, aggregate)); {
	case b.err == nil:
		b.version = row.Version
	case !errors.Is(b.err, sql.ErrNoRows):
		return b
	}
	b.err = db.QueryRowxContext(ctx, s.dialect.Gate.CountHeld, consumer, aggregate, mostCounted).Scan(&b.waiting)
	return b
}

// mostCounted is up to what it is counted how much waits behind a message.
const mostCounted = 1000
