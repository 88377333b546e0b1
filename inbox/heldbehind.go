package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/keycode"
)

// sayHeldBehind says so where messages are held for one that was discarded: nothing releases them, since its
// version is not applied. Beside what the gate noted only the fields of the metadata are looked at: which
// version a message brings is known to the gate of its handler.
func (s *Store) sayHeldBehind(ctx context.Context, row messageRow) {
	for _, v := range row.versions() {
		waiting, err := s.heldBehind(ctx, row.Consumer, v)
		switch about := row.fields().Add(watermill.LogFields{"aggregate": v.Aggregate, "version": v.Number}); {
		case err != nil:
			s.log.Error("inbox: what is held behind a discarded message could not be looked at", explain(err), about)
		case waiting > 0:
			s.log.Error("inbox: messages stay held behind one that was discarded",
				fmt.Errorf("call Store.SetVersion with %d once its effect is there, or is not wanted", v.Number),
				about.Add(watermill.LogFields{"count": waiting}))
		}
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

// heldBehind counts what waits for v, or for a version after it; it does not count on for ever.
func (s *Store) heldBehind(ctx context.Context, consumer int32, v versioned) (waiting int, err error) {
	var row aggregateRow
	db := s.reader(ctx)
	err = row.scan(db.QueryRowxContext(ctx, s.dialect.Gate.SelectAggregate, consumer, v.id))
	if err != nil && !errors.Is(err, sql.ErrNoRows) || err == nil && row.Version >= v.Number {
		return 0, err
	}
	err = db.QueryRowxContext(ctx, s.dialect.Gate.CountHeld, consumer, v.id, mostCounted).Scan(&waiting)
	return waiting, err
}

// mostCounted is up to what it is counted how much waits behind a message.
const mostCounted = 1000
