package admin

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// HistoryEntry is a failed attempt at a message, or a time when the message was parked, held or put
// back. The newest ten of a message are kept as long as its claim. A message that was handled at
// once has none.
type HistoryEntry struct {
	Consumer string
	Epoch    int
	At       time.Time
	Number   int    // counts the entries of the message from 1 on, also those that are deleted
	Status   Status // the message's state from then on; InProgress: its process gave no answer, and the message is tried again
	Failed   bool   // an attempt failed; false: there was no attempt
	Attempts int    // that counted by then
	Reason   string // for the status
	Error    string // of the attempt

	// Of an attempt that failed, if they are known: the [inbox.Config.Process] that ran the handler, how
	// long it ran, and its trace, which the observer of package tracing knows.
	Process string
	Took    time.Duration
	TraceID string
}

// What returns "failed", "parked", "held", or "put back" for a message that will be tried again.
func (e HistoryEntry) What() string {
	switch {
	case e.Failed:
		return "failed"
	case e.Status == Held:
		return "held"
	case e.Status.Stuck():
		return "parked"
	}
	return "put back"
}

// Detail returns the reason.
func (e HistoryEntry) Detail() string {
	if !e.Failed {
		return e.Reason
	}
	if e.Status == InProgress {
		return "its process gave no answer, and it is tried again alone"
	}
	text := cmp.Or(e.Error, "no reason is known")
	if e.Attempts > 0 {
		text = fmt.Sprintf("attempt %d: %s", e.Attempts, text)
	}
	if e.Status != FailedRetryable {
		text += fmt.Sprintf("; %s: %s", e.Status, e.Reason)
	}
	return text
}

// Run says where the handler ran and how long, and "" if neither is known.
func (e HistoryEntry) Run() string {
	var parts []string
	if e.Process != "" {
		parts = append(parts, "in "+e.Process)
	}
	if e.Took > 0 {
		precise := time.Microsecond
		if e.Took > 10*time.Millisecond {
			precise = time.Millisecond
		}
		parts = append(parts, "for "+e.Took.Round(precise).String())
	}
	return strings.Join(parts, " ")
}

type historyRow struct {
	Name       []byte `db:"name"`
	Epoch      int    `db:"epoch"`
	Number     int    `db:"number"`
	At         int64  `db:"at"`
	ReceivedAt int64  `db:"received_at"`
	Attempts   int    `db:"attempts"`
	Status     Status `db:"status"`
	Failed     bool   `db:"failed"`
	Reason     []byte `db:"reason"`
	Error      []byte `db:"error"`
	Process    []byte `db:"process"`
	Took       int64  `db:"took_us"`
	Trace      []byte `db:"trace"`
}

// tellHistory adds the history of the message with the stored key id.
func (a *Admin) tellHistory(ctx context.Context, id []byte, story *Story) error {
	var rows []historyRow
	err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.History.StoryHistory, id, []byte(a.rows.Namespace))
	received := make(map[stored.Name]time.Time)
	for _, r := range rows {
		e := r.entry()
		story.History = append(story.History, e)
		received[stored.Name{Name: e.Consumer, Epoch: e.Epoch}] = time.UnixMicro(r.ReceivedAt).UTC()
	}
	for i, c := range story.Claims {
		at, is := received[stored.Name{Name: c.Consumer, Epoch: c.Epoch}]
		if is && (c.ReceivedAt.IsZero() || at.Before(c.ReceivedAt)) {
			story.Claims[i].ReceivedAt = at
		}
	}
	return err
}

func (r *historyRow) entry() HistoryEntry {
	e := HistoryEntry{
		Consumer: string(r.Name), Epoch: r.Epoch, At: time.UnixMicro(r.At).UTC(), Number: r.Number,
		Status: r.Status, Failed: r.Failed, Attempts: r.Attempts,
	}
	if r.Status != InProgress { // else the row said what had been before
		e.Reason = string(r.Reason)
	}
	if r.Failed && r.Status != InProgress {
		e.Error = string(r.Error)
	}
	if r.Failed {
		e.Process, e.Took, e.TraceID = string(r.Process), time.Duration(r.Took)*time.Microsecond, string(r.Trace)
	}
	return e
}
