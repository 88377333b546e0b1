package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
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
	var topic, group any
	if f.Topic != "" {
		topic = []byte(f.Topic)
	}
	if f.ErrorGroup != 0 {
		group = f.ErrorGroup
	}
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	if !f.ReceivedSince.IsZero() {
		since = f.ReceivedSince.UnixMicro()
	}
	if !f.ReceivedUntil.IsZero() {
		until = f.ReceivedUntil.UnixMicro()
	}
	return []any{topic, topic, group, group, since, until}
}

// MaxPage is how many messages one call lists at most.
const MaxPage = 1000

// Find lists the open messages that f matches in the order they were stored: at most limit
// of them, which is at most MaxPage, after the row with the given ID (0 to begin).
func (s *Store) Find(ctx context.Context, f Filter, after int64, limit int) ([]Message, error) {
	rows, err := s.list(ctx, f, after, limit, Received, InProgress, Settling, FailedRetryable, FailedTerminal, Parked, Held)
	if err != nil {
		return nil, fmt.Errorf("inbox: list messages: %w", explain(err))
	}
	messages := make([]Message, 0, len(rows))
	for _, row := range rows {
		m, err := s.message(ctx, row)
		if err != nil {
			return nil, fmt.Errorf("inbox: list messages: %w", err)
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

// list reads a page, of messages in some states where f names none. The range of one consumer and state is read in the order of its
// index, so a page costs what it holds, however many rows are open.
func (s *Store) list(ctx context.Context, f Filter, after int64, limit int, of ...Status) ([]messageRow, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	if limit < 1 || limit > MaxPage {
		return nil, fmt.Errorf("limit %d is not between 1 and %d: for more, list what is after the last ID", limit, MaxPage)
	}
	consumers, err := s.matching(ctx, f)
	if err != nil {
		return nil, err
	}
	var ids []int64
	for _, c := range consumers {
		for _, status := range f.statuses(of...) {
			var found []int64
			args := append([]any{c.ID, status, after}, append(f.bounds(), limit)...)
			if err := sqlx.SelectContext(ctx, s.reader(ctx), &found, s.dialect.Remedy.ListMessages, args...); err != nil {
				return nil, err
			}
			ids = append(ids, found...)
		}
	}
	slices.Sort(ids)
	return s.listed(ctx, ids[:min(len(ids), limit)])
}

// listed reads rows by their IDs, in their order.
func (s *Store) listed(ctx context.Context, ids []int64) (rows []messageRow, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	query, args, err := s.dialect.In(s.dialect.Remedy.SelectListed, ids)
	if err == nil {
		err = sqlx.SelectContext(ctx, s.reader(ctx), &rows, query, args...)
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
	err := sqlx.SelectContext(ctx, s.reader(ctx), &rows, s.dialect.SelectConsumers)
	return slices.DeleteFunc(rows, func(c consumerRow) bool {
		return string(c.Namespace) != s.config.Namespace ||
			f.Consumer != "" && string(c.Name) != f.Consumer || f.Epoch != nil && c.Epoch != *f.Epoch
	}), err
}
