package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/millrace-go/millrace/internal/database"
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

// Find lists the open messages that f matches in the order they were stored: at most limit
// of them, which is at most MaxPage, after the row with the given ID (0 to begin).
func (s *Store) Find(ctx context.Context, f Filter, after int64, limit int) ([]Message, error) {
	messages, err := s.page(ctx, f, after, limit, s.dialect.Remedy.SelectListed, s.message)
	if err != nil {
		return nil, fmt.Errorf("inbox: list messages: %w", database.Explain(err))
	}
	return messages, nil
}

// page reads messages in any state by statement, and makes of each row what read does.
func (s *Store) page(
	ctx context.Context, f Filter, after int64, limit int, statement string, read func(context.Context, messageRow) (Message, error),
) ([]Message, error) {
	ids, err := s.list(ctx, f, after, limit, allOpen...)
	if err != nil {
		return nil, err
	}
	return s.readPage(ctx, ids, statement, read)
}

// readPage reads the rows with these IDs by statement, and makes of each what read does.
func (s *Store) readPage(
	ctx context.Context, ids []int64, statement string, read func(context.Context, messageRow) (Message, error),
) ([]Message, error) {
	rows, err := s.listed(ctx, statement, ids)
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

// Open lists messages in one state; see [Store.Find].
func (s *Store) Open(ctx context.Context, status Status, after int64, limit int) ([]Message, error) {
	return s.Find(ctx, Filter{Status: status}, after, limit)
}

// Parked lists messages that are parked, which wait for an operator; see [Store.Find].
func (s *Store) Parked(ctx context.Context, after int64, limit int) ([]Message, error) {
	return s.Open(ctx, Parked, after, limit)
}

// Held lists messages that wait for their predecessor; see [Store.Find].
func (s *Store) Held(ctx context.Context, after int64, limit int) ([]Message, error) {
	return s.Open(ctx, Held, after, limit)
}

// list finds the IDs of a page, of messages in some states where f names none.
func (s *Store) list(ctx context.Context, f Filter, after int64, limit int, of ...Status) ([]int64, error) {
	ids, _, err := s.search(ctx, f, after, limit, math.MaxInt, of...)
	return ids, err
}

// listed reads rows by their IDs, in their order.
func (s *Store) listed(ctx context.Context, statement string, ids []int64) (rows []messageRow, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	query, args, err := s.dialect.In(statement, ids)
	if err == nil {
		err = sqlx.SelectContext(ctx, s.db.Reader(ctx), &rows, query, args...)
	}
	return rows, err
}

// matching returns the consumers of the namespace that f matches.
func (s *Store) matching(ctx context.Context, f Filter) ([]consumerRow, error) {
	if f.Consumer != "" && f.Epoch != nil {
		row, err := s.consumerRow(ctx, f.Consumer, *f.Epoch)
		if errors.Is(err, ErrNotFound) {
			return nil, nil
		}
		return []consumerRow{row}, err
	}
	var rows []consumerRow
	err := sqlx.SelectContext(ctx, s.db.Reader(ctx), &rows, s.dialect.SelectConsumers)
	return slices.DeleteFunc(rows, func(c consumerRow) bool {
		return string(c.Namespace) != s.config.Namespace || strings.HasPrefix(string(c.Name), leaseNames) ||
			f.Consumer != "" && string(c.Name) != f.Consumer || f.Epoch != nil && c.Epoch != *f.Epoch
	}), err
}
