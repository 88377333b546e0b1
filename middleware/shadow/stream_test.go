package shadow_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// stream is a seeded stream of what goes wrong in real ones.
type stream struct {
	aggregates, versions int     // each aggregate has versions 1, 2, 3 …
	lost                 float64 // never sent
	copied               float64 // delivered again, as they were
	resent               float64 // sent again under another UUID
	reused               float64 // whose UUID another message has as well
	failed               float64 // whose first run fails, and which are delivered again
	displaced            int     // by how many places a delivery moves at most
}

// dirty has some of everything.
var dirty = stream{
	aggregates: 300, versions: 40, lost: 0.02, copied: 0.1, resent: 0.05, reused: 0.01, failed: 0.04, displaced: 700,
}

// sent is what a stream was made of.
type sent struct {
	messages, lost, copies, resends, reuses, failures int
}

// delivery is one of a stream.
type delivery struct {
	uuid, order string
	aggregate   string
	version     int64
	payload     string
	fails       bool
	pause       time.Duration // before it
}

func (d delivery) message() *message.Message {
	msg := message.NewMessage(d.uuid, []byte(d.payload))
	msg.Metadata = message.Metadata{"order_id": d.order}
	if d.aggregate != "" {
		msg.Metadata[inbox.AggregateField] = d.aggregate
		msg.Metadata[inbox.VersionField] = strconv.FormatInt(d.version, 10)
	}
	return msg
}

var errRun = errors.New("the first run fails")

// handle is a handler of the stream.
func (d delivery) handle(*message.Message) ([]*message.Message, error) {
	if d.fails {
		return nil, errRun
	}
	return nil, nil
}

func (s stream) deliveries(seed uint64) (all []delivery, made sent) {
	r := rand.New(rand.NewPCG(seed, 1))
	chance := func(p float64) bool { return r.Float64() < p }
	placed := map[int][]delivery{}
	place := func(at int, d delivery) {
		at += r.IntN(s.displaced + 1)
		placed[at] = append(placed[at], d)
	}
	for n := range s.aggregates * s.versions {
		d := delivery{
			uuid: fmt.Sprintf("id-%d-%d", seed, n), order: fmt.Sprint("order-", n), payload: fmt.Sprint("payload ", n),
			aggregate: fmt.Sprint("aggregate-", n%s.aggregates), version: int64(n/s.aggregates) + 1,
		}
		if chance(s.lost) {
			made.lost++
			continue
		}
		made.messages++
		if chance(s.failed) {
			made.failures++
			failing := d
			failing.fails = true
			placed[n] = append([]delivery{failing}, placed[n]...) // before all others of its key
		}
		place(n, d)
		if chance(s.copied) {
			made.copies++
			place(n, d)
		}
		if chance(s.resent) {
			made.resends++
			again := d
			again.uuid = watermill.NewUUID()
			place(n, again)
		}
		if chance(s.reused) {
			made.reuses++
			other := delivery{uuid: d.uuid, order: "other-" + d.order, payload: "other " + d.payload}
			place(n+s.displaced+1, other) // after the first run
		}
	}
	for at := range s.aggregates*s.versions + 3*s.displaced + 2 {
		all = append(all, placed[at]...)
	}
	for i := range all {
		all[i].pause = time.Duration(r.IntN(int(time.Second)))
	}
	return all, made
}

// truth is what the rates of deliveries are, found in the slow and obvious way.
type truth struct {
	byUUID, byOrder, byPayload keyTruth
	versions                   versionTruth
}

type keyTruth struct {
	distinct, duplicates, collisions, retries, copied int
	apart                                             []time.Duration
}

type versionTruth struct {
	first, inOrder, early, late, repeated, retries, held int
	missing, open, openIn                                int
	overtaken                                            []int64
	waits                                                []time.Duration
}

// arrival is a delivery and when it came.
type arrival struct {
	delivery
	at time.Duration
}

func truthOf(all []delivery) truth {
	var arrivals []arrival
	var now time.Duration
	for _, d := range all {
		now += d.pause
		arrivals = append(arrivals, arrival{d, now})
	}
	return truth{
		byUUID:    keysOf(arrivals, func(d delivery) string { return d.uuid }),
		byOrder:   keysOf(arrivals, func(d delivery) string { return d.order }),
		byPayload: keysOf(arrivals, func(d delivery) string { return d.payload }),
		versions:  versionsOf(arrivals),
	}
}

func keysOf(arrivals []arrival, key func(delivery) string) (t keyTruth) {
	groups := map[string][]arrival{}
	for _, a := range arrivals {
		groups[key(a.delivery)] = append(groups[key(a.delivery)], a)
	}
	for _, group := range groups {
		t.distinct++
		handled := !group[0].fails
		var apart time.Duration = -1
		for _, a := range group[1:] {
			switch {
			case a.payload != group[0].payload:
				t.collisions++
				apart = a.at - group[0].at
			case handled:
				t.duplicates++
				apart = a.at - group[0].at
			default:
				t.retries++
			}
			handled = handled || !a.fails
		}
		if apart >= 0 {
			t.copied++
			t.apart = append(t.apart, apart)
		}
	}
	slices.Sort(t.apart)
	return t
}

func versionsOf(arrivals []arrival) (t versionTruth) {
	groups := map[string][]arrival{}
	for _, a := range arrivals {
		if a.aggregate == "" {
			t.missing++
			continue
		}
		groups[a.aggregate] = append(groups[a.aggregate], a)
	}
	for _, group := range groups {
		came := map[int64]bool{}
		for i, a := range group {
			t.count(group[:i], a, came)
			came[a.version] = true
		}
		missing := 0
		for v := lowest(came); v < highest(came); v++ {
			if !came[v] {
				missing++
			}
		}
		t.open += missing
		t.openIn += min(missing, 1)
	}
	slices.Sort(t.overtaken)
	slices.Sort(t.waits)
	return t
}

func (t *versionTruth) count(before []arrival, a arrival, came map[int64]bool) {
	if len(before) == 0 {
		t.first++
		return
	}
	if came[a.version] {
		lastFailed := false
		for _, b := range before {
			if b.version == a.version {
				lastFailed = b.fails
			}
		}
		if lastFailed {
			t.retries++
		} else {
			t.repeated++
		}
		return
	}
	top, low := highest(came), lowest(came)
	switch {
	case a.version == top+1:
		t.inOrder++
	case a.version > top:
		t.early++
	default:
		t.late++
		above := map[int64]bool{}
		var wait time.Duration
		for _, b := range before {
			if b.version > a.version {
				if len(above) == 0 {
					wait = a.at - b.at
				}
				above[b.version] = true
			}
		}
		t.overtaken = append(t.overtaken, int64(len(above)))
		t.waits = append(t.waits, wait)
	}
	for v := low; v < a.version; v++ {
		if !came[v] {
			t.held++
			return
		}
	}
}

func highest(came map[int64]bool) (top int64) {
	for v := range came {
		top = max(top, v)
	}
	return top
}

func lowest(came map[int64]bool) int64 {
	low := highest(came)
	for v := range came {
		low = min(low, v)
	}
	return low
}
