package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// Activity is what all processes of the service did for one consumer and epoch in one minute.
type Activity struct {
	Consumer string
	Epoch    int
	Minute   time.Time // its beginning

	Completed  int64
	Failed     int64 // runs that were rolled back
	Duplicates int64 // copies that were acked without running the handler
	Stale      int64 // messages with a version that the aggregate had passed
	Held       int64 // messages that came before their predecessor
	Parked     int64

	// Handling is the total time of the runs that were completed or failed.
	Handling time.Duration
}

// ActivityKept is how long [Admin.Activity] is kept.
const ActivityKept = 24 * time.Hour

// Activity lists what was done since the minute of since, by minute, consumer and epoch. It leaves
// out minutes in which a consumer did nothing. [inbox.Store.Run] writes the figures of its process
// every ten seconds, for the minute in which it writes them, and [inbox.Store.Close] writes the
// last ones. If a process dies, its last figures are lost; if the answer to a commit is lost, its
// figures can count twice. Handlers without middleware.Inbox are not counted.
func (a *Admin) Activity(ctx context.Context, since time.Time) ([]Activity, error) {
	var rows []activityRow
	err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.SelectActivity,
		since.Truncate(time.Minute).UnixMicro(), []byte(a.rows.Namespace))
	if err != nil {
		return nil, fmt.Errorf("inbox: list the activity: %w", database.Explain(err))
	}
	all := make([]Activity, 0, len(rows))
	for _, r := range rows {
		all = append(all, Activity{
			Consumer: string(r.Name), Epoch: r.Epoch, Minute: time.UnixMicro(r.Minute).UTC(),
			Completed: r.Completed, Failed: r.Failed, Duplicates: r.Duplicates,
			Stale: r.Stale, Held: r.Held, Parked: r.Parked,
			Handling: time.Duration(r.Handling) * time.Microsecond,
		})
	}
	return all, nil
}

type activityRow struct {
	Name       []byte `db:"name"`
	Epoch      int    `db:"epoch"`
	Minute     int64  `db:"minute"`
	Completed  int64  `db:"completed"`
	Failed     int64  `db:"failed"`
	Duplicates int64  `db:"duplicates"`
	Stale      int64  `db:"stale"`
	Held       int64  `db:"held"`
	Parked     int64  `db:"parked"`
	Handling   int64  `db:"handling_us"`
}
