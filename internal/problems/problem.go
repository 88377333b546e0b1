// Package problems finds what is wrong with a service, worst first. The command and the dashboard begin with it.
package problems

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// Kind says what is wrong.
type Kind string

// Kinds of problems, worst first.
const (
	DatabaseOut   Kind = "database-out"
	Unreadable    Kind = "unreadable" // tables that are missing or older than this program
	BrokerOut     Kind = "broker-out"
	NoRelay       Kind = "no-relay"
	ShardsUnowned Kind = "shards-unowned"
	Gap           Kind = "gap"
	Outcomes      Kind = "outcomes" // that may not be published
	StepsInDoubt  Kind = "steps-in-doubt"
	Stuck         Kind = "stuck"
	OutboxParked  Kind = "outbox-parked"
	NotServed     Kind = "not-served"
	OldPending    Kind = "old-pending"
	OutboxLag     Kind = "outbox-lag"
	Paused        Kind = "paused"
	Cleanup       Kind = "cleanup"
)

var worstFirst = []Kind{
	DatabaseOut, Unreadable, BrokerOut, NoRelay, ShardsUnowned, Gap, Outcomes, StepsInDoubt, Stuck, OutboxParked,
	NotServed, OldPending, OutboxLag, Paused, Cleanup,
}

// Problem is one thing that is wrong.
type Problem struct {
	Kind     Kind
	What     string        // in one sentence, without the full stop; it may contain texts of messages
	Count    admin.Count   // of messages, or of steps; 0: that is not known
	Since    time.Duration // 0: that is not known
	Consumer string        // "" for the outbox, and for several consumers
	Epoch    int
	Group    int64  // of errors, as admin.Filter takes it; 0: none
	Error    string // of the group; What ends with its shape
	Key      string // of a message that shows it; "" for none
	More     bool   // it sums up others of its kind
}

// Severity returns how serious the problem is: of an error, messages may be lost, or do not go on by themselves.
func (p Problem) Severity() inbox.Severity {
	if slices.Index(worstFirst, p.Kind) <= slices.Index(worstFirst, OutboxParked) {
		return inbox.Error
	}
	return inbox.Warning
}

// mostOfAKind is how many problems of one kind are listed.
const mostOfAKind = 5

// sorted returns the problems worst first. It sums up those of a kind of which there are many.
func sorted(all []Problem) []Problem {
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(slices.Index(worstFirst, a.Kind), slices.Index(worstFirst, b.Kind)),
			cmp.Compare(b.Count.N, a.Count.N), cmp.Compare(b.Since, a.Since))
	})
	var few []Problem
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Kind == all[0].Kind {
			n++
		}
		few = append(few, summed(all[:n])...)
		all = all[n:]
	}
	return few
}

func summed(kind []Problem) []Problem {
	if len(kind) <= mostOfAKind+1 {
		return kind
	}
	rest := Problem{Kind: kind[0].Kind, More: true, What: fmt.Sprintf("%d more like these", len(kind)-mostOfAKind)}
	for _, p := range kind[mostOfAKind:] {
		rest.Count, rest.Since = rest.Count.Plus(p.Count), max(rest.Since, p.Since)
	}
	return append(kind[:mostOfAKind:mostOfAKind], rest)
}
