package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
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
	backlog       outbox.Backlog
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

func (a *app) outboxStatus(ctx context.Context) (outboxStatus, error) {
	var s outboxStatus
	out, err := a.publisher(ctx)
	if err != nil {
		return s, err
	}
	b, err := out.Backlog(ctx, outbox.BacklogOptions{})
	if err != nil {
		return s, err
	}
	layout, err := out.Shards(ctx)
	if err != nil {
		return s, err
	}
	s = outboxStatus{
		Pending: countOf(b.Pending), Retrying: countOf(b.Retrying), Held: countOf(b.Held), Parked: countOf(b.Parked),
		OldestPending: seconds(b.OldestPending), Relays: relaysOf(layout), Shards: len(layout.Shards),
		Unowned: layout.Unowned(), backlog: b,
	}
	return s, nil
}

func relaysOf(layout outbox.Layout) []relayStatus {
	relays := []relayStatus{}
	for _, r := range layout.Relays {
		relays = append(relays, relayStatus{
			Name: r.Name, Alive: r.Alive, Shards: r.Shards, Started: since(r.StartedAt), Until: since(r.Until),
			BrokerOut: since(r.BrokerOutSince), BrokerError: r.BrokerError, outFor: time.Since(r.BrokerOutSince),
		})
	}
	return relays
}

func (s outboxStatus) text() string { return s.counts() + brokerText(s.Relays) }

func (s outboxStatus) counts() string {
	b := s.backlog
	text := fmt.Sprintf("\nOutbox: %s pending, %s retrying, %s held, %s parked", b.Pending, b.Retrying, b.Held, b.Parked)
	if b.OldestPending > 0 {
		text += "; the oldest waits for " + span(b.OldestPending)
	}
	var names []string
	for _, r := range s.Relays {
		if r.Alive {
			names = append(names, r.Name)
		}
	}
	waits := b.Unsent().N > 0
	switch {
	case s.Shards == 0 && !waits && b.Parked.N == 0:
		return "\nOutbox: not in use: it is empty, and no relay has run\n"
	case s.Shards == 0 && waits:
		return text + "\nRelays: none has run yet, so nothing is sent\n"
	case s.Shards == 0:
		return text + "\nRelays: none has run yet\n"
	case len(names) == 0 && !waits:
		return text + "\nRelays: none runs, and nothing waits to be sent\n"
	case len(names) == 0:
		return text + "\nRelays: none runs, so nothing is sent\n"
	case s.Unowned > 0:
		return text + fmt.Sprintf("\nRelays: %s; %d of %d shards have none\n", strings.Join(names, ", "), s.Unowned, s.Shards)
	}
	return text + fmt.Sprintf("\nRelays: %s; all %d shards have one\n", strings.Join(names, ", "), s.Shards)
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

// tablesTable shows the tables that have rows, in one line.
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
	return "Rows: " + strings.Join(sizes, ", ") + "\n"
}
