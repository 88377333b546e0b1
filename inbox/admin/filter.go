package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// Filter selects open messages of the namespace. Zero fields match all.
type Filter struct {
	Consumer string
	Epoch    *int // nil matches all
	Status   Status
	Topic    string

	// ErrorGroup is that of a FailureGroup: it selects messages whose last error has the group's
	// shape.
	ErrorGroup int64

	// ReceivedSince and ReceivedUntil limit the time at which the message was stored; the end is
	// exclusive.
	ReceivedSince time.Time
	ReceivedUntil time.Time
}

func (f Filter) validate() error {
	if f.Status < 0 || f.Status > Held {
		return fmt.Errorf("filter: %s is not one of the constants", f.Status)
	}
	if f.ErrorGroup < 0 {
		return fmt.Errorf("filter: ErrorGroup %d is no group of errors: choose messages without an error by their IDs", f.ErrorGroup)
	}
	return nil
}

// String says in words which messages f selects of those that an action on many can take.
func (f Filter) String() string {
	var b strings.Builder
	if f.Status == 0 {
		b.WriteString("messages that wait for an operator")
	} else {
		fmt.Fprintf(&b, "%s messages", f.Status)
	}
	if f.Consumer != "" {
		fmt.Fprintf(&b, ", of consumer %q", f.Consumer)
	}
	if f.Epoch != nil {
		fmt.Fprintf(&b, ", of epoch %d", *f.Epoch)
	}
	if f.Topic != "" {
		fmt.Fprintf(&b, ", from topic %q", f.Topic)
	}
	if f.ErrorGroup != 0 {
		fmt.Fprintf(&b, ", of failure group %d", f.ErrorGroup)
	}
	const to = "2006-01-02T15:04:05.999999Z"
	if !f.ReceivedSince.IsZero() {
		b.WriteString(", stored since " + f.ReceivedSince.UTC().Format(to))
	}
	if !f.ReceivedUntil.IsZero() {
		b.WriteString(", stored before " + f.ReceivedUntil.UTC().Format(to))
	}
	return b.String()
}

// statuses returns those of the given states that f matches.
func (f Filter) statuses(of ...Status) []Status {
	if f.Status == 0 {
		return of
	}
	return []Status{f.Status}
}

// bounds returns the arguments of a statement for what f says about a message.
func (f Filter) bounds() []any {
	var topic any
	if f.Topic != "" {
		topic = []byte(f.Topic)
	}
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	if !f.ReceivedSince.IsZero() {
		since = f.ReceivedSince.UnixMicro()
	}
	if !f.ReceivedUntil.IsZero() {
		until = f.ReceivedUntil.UnixMicro()
	}
	return []any{topic, topic, since, until}
}

// MaxPage is the greatest number of messages that one call lists.
const MaxPage = 1000

// Find lists open messages that f matches, whole and in the order they were stored: at most limit
// messages (up to MaxPage) after the row with the given ID, which is 0 to begin. It reads payloads
// without an audit; [Admin.Search] lists messages without payloads.
func (a *Admin) Find(ctx context.Context, f Filter, after int64, limit int) ([]Message, error) {
	for {
		ids, err := a.list(ctx, f, after, limit, stored.Open...)
		var messages []Message
		if err == nil {
			messages, err = a.readPage(ctx, ids, a.rows.Dialect.Remedy.SelectListed, a.whole)
		}
		if err != nil {
			return nil, fmt.Errorf("inbox: list messages: %w", database.Explain(err))
		}
		if len(messages) > 0 || len(ids) == 0 {
			return messages, nil
		}
		after = slices.Max(ids) // all of the page are handled by now, which does not make it the last one
	}
}

// readPage reads the rows with these IDs by statement, and converts each with read.
func (a *Admin) readPage(
	ctx context.Context, ids []int64, statement string, read func(context.Context, stored.Message) (Message, error),
) ([]Message, error) {
	rows, broken, err := a.listed(ctx, statement, ids)
	if err != nil {
		return nil, err
	}
	messages := make([]Message, 0, len(ids))
	for _, row := range rows {
		m, err := read(ctx, row)
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	for id, why := range broken {
		messages = append(messages, Message{ID: id, Unreadable: why})
	}
	slices.SortFunc(messages, func(a, b Message) int { return cmp.Compare(a.ID, b.ID) })
	return messages, nil
}

// list returns the IDs of a page. If f names no state, it lists messages in the states of.
func (a *Admin) list(ctx context.Context, f Filter, after int64, limit int, of ...Status) ([]int64, error) {
	ids, _, err := a.search(ctx, f, after, limit, math.MaxInt, upwards, of...)
	return ids, err
}

// listed reads rows in the order of ids. Somebody may have changed a row so that it cannot be read, as
// on SQLite, where a column takes any value: broken says why, by its ID.
func (a *Admin) listed(ctx context.Context, statement string, ids []int64) (rows []stored.Message, broken map[int64]error, err error) {
	if len(ids) == 0 {
		return nil, nil, nil
	}
	query, args, err := a.rows.Dialect.In(statement, ids)
	if err == nil {
		err = sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, query, args...)
	}
	if err == nil || ctx.Err() != nil || dialect.Classify(err) != dialect.Other {
		return rows, nil, err
	}
	if len(ids) == 1 {
		return nil, map[int64]error{ids[0]: fmt.Errorf("row %d cannot be read, so somebody changed it: %w", ids[0], err)}, nil
	}
	rows, broken = nil, make(map[int64]error)
	for _, id := range ids {
		one, why, err := a.listed(ctx, statement, []int64{id})
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, one...)
		maps.Copy(broken, why)
	}
	return rows, broken, nil
}

// matching returns the consumers of the namespace that f matches.
func (a *Admin) matching(ctx context.Context, f Filter) ([]stored.Consumer, error) {
	return a.rows.Consumers(ctx, f.Consumer, f.Epoch)
}
