package admin

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// HistoryEntry is something that went wrong with a message, or held it up: an attempt that failed,
// or that it was put aside. It is kept as long as the message's claim, at most ten for a message:
// the newest. A message that was handled at once has none.
type HistoryEntry struct {
	Consumer string
	Epoch    int
	At       time.Time
	Number   int    // counts the entries of the message from 1 on; the older ones are not kept
	Status   Status // of the message from then on; InProgress: its process gave no answer, and it is tried again
	Failed   bool   // an attempt failed; false: it was put aside without one
	Attempts int    // that counted by then
	Reason   string // for which it has that status
	Error    string // of the attempt
}

// What names the entry: "failed", "parked", "held", or "put back" where it was put aside to be tried again.
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

// Detail says why.
func (e HistoryEntry) Detail() string {
	if !e.Failed {
		return e.Reason
	}
	if e.Status == InProgress {
		return "its process gave no answer, and it is tried again alone"
	}
	text := cmp.Or(e.Error, "nobody said why")
	if e.Attempts > 0 {
		text = fmt.Sprintf("attempt %d: %s", e.Attempts, text)
	}
	if e.Status != FailedRetryable {
		text += fmt.Sprintf("; %s: %s", e.Status, e.Reason)
	}
	return text
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
}

// tellHistory adds what happened to the message with the stored key id.
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
	return e
}
