package inbox

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/internal/batching"
)

// observe tells how one try to handle part at once has ended. Only the first event of a batch has a Duration.
func (b *batches) observe(part []*member, reason string) {
	s, of := b.consumer.store, part[0].batch
	if !s.observers.wanted(KindBatch) {
		return
	}
	e := Event{
		Consumer: b.consumer.config.Name, Epoch: b.consumer.config.Epoch, Topic: part[0].delivery.topic,
		Reason: reason, Count: len(part), Duration: of.gathered,
	}
	told := &batching.Try{Began: of.began}
	for _, m := range part {
		told.Deliveries = append(told.Deliveries, m.delivery.ctx)
	}
	of.gathered = 0
	s.tellApart(context.WithValue(of.ctx, tryKey{}, told), KindBatch, e)
	of.began = time.Now() // of the next one
}

// begin notes how long the members have gathered, of whom first came first.
func (of *batch) begin(first *member) {
	of.began = time.Now()
	of.gathered = max(of.began.Sub(first.arrived), 1)
}

type tryKey struct{}

// BatchOf returns the batch of an event of [KindBatch], by the context of the event, or nil.
func (Internals) BatchOf(ctx context.Context) *batching.Try {
	told, _ := ctx.Value(tryKey{}).(*batching.Try)
	return told
}
