package admin

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Filter says which open messages of the namespace are meant. Fields that are zero match all.
type Filter struct {
	Consumer string
	Epoch    *int // nil matches all
	Status   Status
	Topic    string

	// ErrorGroup is a FailureGroup's: messages whose last error was of its shape.
	ErrorGroup int64

	// ReceivedSince and ReceivedUntil bound when the message was stored; the end is not
	// part of it.
	ReceivedSince time.Time
	ReceivedUntil time.Time
}

func (f Filter) validate() error {
	if f.Status < 0 || f.Status > Held {
		return fmt.Errorf("filter: %s is none of the constants", f.Status)
	}
	if f.ErrorGroup < 0 {
		return fmt.Errorf("filter: ErrorGroup %d is negative", f.ErrorGroup)
	}
	return nil
}

// statuses returns the states that f matches, of those given.
func (f Filter) statuses(of ...Status) []Status {
	if f.Status == 0 {
		return of
	}
	return []Status{f.Status}
}

// bounds are the arguments of a statement for what f says of a message itself.
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

// MaxPage is how many messages one call lists at most.
const MaxPage = 1000

// Find lists the open messages that f matches in the order they were stored, whole: at most limit
// of them, which is at most MaxPage, after the row with the given ID (0 to begin). It reads
// payloads and tells nobody; [Admin.Search] lists messages without them.
func (a *Admin) Find(ctx context.Context, f Filter, after int64, limit int) ([]Message, error) {
	ids, err := a.list(ctx, f, after, limit, stored.Open...)
	var messages []Message
	if err == nil {
		messages, err = a.readPage(ctx, ids, a.rows.Dialect.Remedy.SelectListed, a.whole)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: list messages: %w", database.Explain(err))
	}
	return messages, nil
}

// readPage reads the rows with these IDs by statement, and makes of each what read does.
func (a *Admin) readPage(
	ctx context.Context, ids []int64, statement string, read func(context.Context, stored.Message) (Message, error),
) ([]Message, error) {
	rows, err := a.listed(ctx, statement, ids)
	if err != nil {
		return nil, err
	}
	messages := make([]Message, 0, len(rows))
	for _, row := range rows {
		m, err := read(ctx, row)
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// list finds the IDs of a page, of messages in some states where f names none.
func (a *Admin) list(ctx context.Context, f Filter, after int64, limit int, of ...Status) ([]int64, error) {
	ids, _, err := a.search(ctx, f, after, limit, math.MaxInt, of...)
	return ids, err
}

// listed reads rows by their IDs, in their order.
func (a *Admin) listed(ctx context.Context, statement string, ids []int64) (rows []stored.Message, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	query, args, err := a.rows.Dialect.In(statement, ids)
	if err == nil {
		err = sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, query, args...)
	}
	return rows, err
}

// matching returns the consumers of the namespace that f matches.
func (a *Admin) matching(ctx context.Context, f Filter) ([]stored.Consumer, error) {
	return a.rows.Consumers(ctx, f.Consumer, f.Epoch)
}
