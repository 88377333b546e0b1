package admin

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Process is an inbox.Store with background work, in some process of the service. A process with two
// Stores is listed twice.
type Process struct {
	Name     string // Config.Process
	Host     string
	PID      int64
	Program  string // the path of its main package
	Version  string // Config.Version
	Millrace string // the version of this library, if Go recorded it

	StartedAt time.Time // when the Store was made
	SeenAt    time.Time // when it last wrote to the table
	At        time.Time // when the list was read; all by the database's clock

	// Alive says that it wrote within the last minute. Otherwise it was killed, its host is gone, the
	// database did not answer it, or its pool has no connection to spare.
	Alive bool

	Serves []Serving // the consumers that have a queue here or had a message, by their names
	More   int       // how many consumers Serves leaves out, because it would be too long

	Cursor string // for [Admin.Processes], to begin after this one
}

// Serving is a consumer that a process serves.
type Serving = stored.Serving

// silence is how long a process may write nothing.
const silence = time.Minute

// Processes lists the Stores whose background work Store.Plugin or Store.Run does, by
// their names: at most limit (up to MaxPage) after the one with the given Cursor, which is "" to
// begin. With a name it lists only those. One that is closed leaves the list; one that is killed stays
// for an hour.
func (a *Admin) Processes(ctx context.Context, name, after string, limit int) ([]Process, error) {
	all, err := a.processes(ctx, name, after, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox: list processes: %w", database.Explain(err))
	}
	return all, nil
}

func (a *Admin) processes(ctx context.Context, name, after string, limit int) ([]Process, error) {
	if err := validPage(limit); err != nil {
		return nil, err
	}
	from, token := []byte(name), int64(0) // tokens are positive
	if after != "" {
		var err error
		if from, token, err = parseProcessCursor(after); err != nil {
			return nil, err
		}
	}
	var rows []processRow
	err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.SelectProcesses,
		[]byte(a.rows.Namespace), from, from, token, limit)
	rows = slices.DeleteFunc(rows, func(r processRow) bool { return name != "" && string(r.Name) != name })
	all := make([]Process, 0, len(rows))
	for _, r := range rows {
		all = append(all, r.process())
	}
	return all, err
}

type processRow struct {
	Name      []byte `db:"name"`
	Token     int64  `db:"token"`
	Host      []byte `db:"host"`
	PID       int64  `db:"pid"`
	Program   []byte `db:"program"`
	Version   []byte `db:"version"`
	Millrace  []byte `db:"millrace"`
	Consumers int    `db:"consumers"`
	Serves    []byte `db:"serves"`
	StartedAt int64  `db:"started_at"`
	SeenAt    int64  `db:"seen_at"`
	Now       int64  `db:"now"`
}

func (r *processRow) process() Process {
	serves, err := stored.DecodeServings(r.Serves)
	if err != nil { // somebody changed the row; the number still says how many there are
		serves = nil
	}
	most := silence.Microseconds()
	return Process{
		Name: string(r.Name), Host: string(r.Host), PID: r.PID, Program: string(r.Program), Version: string(r.Version),
		Millrace: string(r.Millrace), StartedAt: time.UnixMicro(r.StartedAt).UTC(), SeenAt: time.UnixMicro(r.SeenAt).UTC(),
		At: time.UnixMicro(r.Now).UTC(), Alive: r.SeenAt > r.Now-most && r.SeenAt < r.Now+most, // the clock may have been set back since
		Serves: serves, More: max(r.Consumers-len(serves), 0), Cursor: newProcessCursor(r.Name, r.Token),
	}
}

// A cursor of a process is its token and its name.
func newProcessCursor(name []byte, token int64) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(token)) //nolint:gosec // bits only
	return base64.RawURLEncoding.EncodeToString(append(b, name...))
}

func parseProcessCursor(cursor string) (name []byte, token int64, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) < 8 {
		return nil, 0, stored.CursorError("a process")
	}
	return b[8:], int64(binary.BigEndian.Uint64(b)), nil //nolint:gosec // bits only
}
