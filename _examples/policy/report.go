package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
)

const versions = 10

var products = []string{"chair", "table", "lamp"}

// deliveries are the changes as a broker on a bad day has them: those with an odd version come
// twice, version 6 before version 5, and version 8 of the chair is lost.
func deliveries() (all []*message.Message) {
	for _, version := range []int{1, 2, 3, 4, 6, 5, 7, 8, 9, 10} {
		for _, product := range products {
			if product == "chair" && version == 8 {
				continue
			}
			for range 1 + version%2 {
				all = append(all, newChange(product, version))
			}
		}
	}
	return all
}

// replay is all changes again, in order.
func replay() (all []*message.Message) {
	for version := range versions {
		for _, product := range products {
			msg := newChange(product, version+1)
			msg.Metadata.Set(inbox.ReplayField, "after the loss")
			all = append(all, msg)
		}
	}
	return all
}

func newChange(product string, version int) *message.Message {
	return message.NewMessage(fmt.Sprintf("%s-%d", product, version), fmt.Appendf(nil, `{"product":%q,"version":%d}`, product, version))
}

// report sends and tells.
type report struct {
	db    *sqlx.DB
	count *counter
	out   *outside
}

var consumers = []string{"search-indexer", "notification-sender", "analytics", "audit-copy", "workflow", "cache-warmer"}

func (r *report) send(ctx context.Context, broker message.Publisher) error {
	const all, lost = 3 * versions, 1
	first := deliveries()
	if err := broker.Publish("products", first...); err != nil {
		return err
	}
	if err := r.await(ctx, "notification-sender", all-lost); err != nil { // the queue tries again what failed
		return err
	}
	r.print(fmt.Sprintf("%d deliveries of %d changes, one of them lost", len(first), all))
	if err := broker.Publish("products", replay()...); err != nil {
		return err
	}
	if err := r.await(ctx, "audit-copy", all); err != nil { // what was lost lets go what waited for it
		return err
	}
	if err := r.await(ctx, "warehouse", all-lost); err != nil {
		return err
	}
	r.print("a replay of all changes")
	return r.judge(all, lost)
}

// judge compares what was done with the policy.
func (r *report) judge(all, lost int) error {
	mails, _, commands := r.out.done()
	var err error
	fmt.Printf("mails sent: %d, commands sent: %d\n", mails, commands)
	for _, c := range []struct {
		is, want int
		what     string
	}{
		{r.effects("analytics"), all, "events were counted"}, {r.effects("search-indexer"), all - 4, "states were indexed"},
		{r.effects("audit-copy"), all, "changes are in the audit copy"},
		{mails, all - lost, "mails were sent"}, {commands, all - lost, "commands were sent"},
		{r.count.of("notification-sender", "parked"), lost, "replays were refused"},
	} {
		if c.is != c.want {
			err = errors.Join(err, fmt.Errorf("%d %s instead of %d", c.is, c.what, c.want))
		}
	}
	return err
}

func (r *report) print(after string) {
	fmt.Printf("after %s\n\n%-22s%9s%12s%8s%8s%8s%9s\n", after,
		"consumer", "effects", "duplicates", "stale", "held", "failed", "refused")
	for _, c := range consumers {
		fmt.Printf("%-22s%9d%12d%8d%8d%8d%9d\n", c, r.effects(c), r.count.of(c, "duplicate"), r.count.of(c, "stale"),
			r.count.of(c, "held"), r.count.of(c, "failed"), r.count.of(c, "parked"))
	}
	fmt.Println()
}

// effects counts what a consumer did.
func (r *report) effects(consumer string) (n int) {
	_, warmed, commands := r.out.done()
	switch consumer {
	case "cache-warmer":
		return warmed
	case "warehouse":
		return commands
	}
	if err := r.db.Get(&n, `SELECT COUNT(*) FROM effects WHERE consumer = ?`, consumer); err != nil {
		return -1
	}
	return n
}

// await waits until a consumer has done so much.
func (r *report) await(ctx context.Context, consumer string, effects int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for r.effects(consumer) < effects {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s has done %d instead of %d", consumer, r.effects(consumer), effects)
		}
	}
	return nil
}
