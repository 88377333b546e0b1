package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/problems"
	"github.com/millrace-go/millrace/outbox"
)

// outboxStatus says in JSON what waits to be sent, and who sends it.
type outboxStatus struct {
	Pending       count         `json:"pending"`
	Retrying      count         `json:"retrying"`
	Held          count         `json:"held"`
	Parked        count         `json:"parked"`
	OldestPending float64       `json:"oldest_pending_seconds"`
	Relays        []relayStatus `json:"relays"`
	Shards        int           `json:"shards"`
	Unowned       int           `json:"unowned_shards"`
	seen          *problems.Outbox
}

type relayStatus struct {
	Name    string  `json:"name"`
	Alive   bool    `json:"alive"`
	Shards  int     `json:"shards"`
	Started *string `json:"started_at"`
	Until   *string `json:"lease_until"`

	BrokerOut   *string `json:"broker_out_since"` // null: messages get through, or there are none
	BrokerError string  `json:"broker_error,omitempty"`
	outFor      time.Duration
}

func outboxStatusOf(o *problems.Outbox) outboxStatus {
	b, layout := o.Backlog, o.Layout
	return outboxStatus{
		Pending: countOf(b.Pending), Retrying: countOf(b.Retrying), Held: countOf(b.Held), Parked: countOf(b.Parked),
		OldestPending: seconds(b.OldestPending), Relays: relaysOf(layout), Shards: len(layout.Shards),
		Unowned: layout.Unowned(), seen: o,
	}
}

func relaysOf(layout outbox.Layout) []relayStatus {
	relays := []relayStatus{}
	for _, r := range layout.Relays {
		relays = append(relays, relayStatus{
			Name: r.Name, Alive: r.Alive, Shards: r.Shards, Started: since(r.StartedAt), Until: since(r.Until),
			BrokerOut: since(r.BrokerOutSince), BrokerError: r.BrokerError, outFor: layout.At.Sub(r.BrokerOutSince),
		})
	}
	return relays
}

func (s outboxStatus) text() string {
	if s.seen.Err != nil {
		return "" // the first lines say why
	}
	text := "\n" + wrapped(s.counts(), screenWidth) + "\n"
	if senders := s.senders(); senders != "" {
		text += wrapped(senders, screenWidth) + "\n"
	}
	return text
}

func (s outboxStatus) counts() string {
	b := s.seen.Backlog
	if s.Shards == 0 && b.Unsent().N == 0 && b.Parked.N == 0 {
		return "Outbox: not in use: it is empty, and no relay has run"
	}
	text := fmt.Sprintf("Outbox: %s pending, %s retrying, %s held, %s parked", b.Pending, b.Retrying, b.Held, b.Parked)
	if b.OldestPending > 0 {
		text += "; the oldest waits for " + span(b.OldestPending)
	}
	return text
}

func (s outboxStatus) senders() string {
	var names []string
	for _, r := range s.Relays {
		if r.Alive {
			names = append(names, oneLine(r.Name))
		}
	}
	waits := s.seen.Backlog.Unsent().N > 0
	switch {
	case s.Shards == 0 && !waits && s.Parked.N == 0:
		return ""
	case s.Shards == 0 && waits:
		return "Relays: none has run yet, so nothing is sent"
	case s.Shards == 0:
		return "Relays: none has run yet"
	case len(names) == 0 && !waits:
		return "Relays: none runs, and nothing waits to be sent"
	case len(names) == 0:
		return "Relays: none runs, so nothing is sent"
	case s.Unowned > 0:
		return fmt.Sprintf("Relays: %s; %d of %d shards have none", strings.Join(names, ", "), s.Unowned, s.Shards)
	}
	return fmt.Sprintf("Relays: %s; all %d shards have one", strings.Join(names, ", "), s.Shards)
}

// brokerText says which relays get nothing through to the broker.
func brokerText(relays []relayStatus) (text string) {
	for _, r := range relays {
		if r.Alive && r.BrokerOut != nil {
			text += fmt.Sprintf("Broker: out for %s for %s: nothing gets through: %s\n", oneLine(r.Name), span(r.outFor), oneLine(r.BrokerError))
		}
	}
	return text
}

// tableStatus is the size of a table in JSON.
type tableStatus struct {
	Name      string `json:"name"`
	Rows      int64  `json:"rows"` // -1: not known
	Estimated bool   `json:"estimated"`
}

func tablesOf(ctx context.Context, store *inbox.Store) ([]tableStatus, error) {
	tables, err := admin.New(store).Tables(ctx)
	all := []tableStatus{}
	for _, t := range tables {
		all = append(all, tableStatus(t))
	}
	return all, err
}

// tablesTable shows the tables that have rows.
func tablesTable(tables []tableStatus) string {
	var sizes []string
	for _, t := range tables {
		switch {
		case t.Rows < 0:
			sizes = append(sizes, t.Name+" ?")
		case t.Rows > 0 && t.Estimated:
			sizes = append(sizes, fmt.Sprintf("%s ~%d", t.Name, t.Rows))
		case t.Rows > 0:
			sizes = append(sizes, fmt.Sprintf("%s %d", t.Name, t.Rows))
		}
	}
	if len(sizes) == 0 {
		return ""
	}
	return wrapped("Rows: "+strings.Join(sizes, ", "), screenWidth) + "\n"
}
