package middleware_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	millrace "github.com/millrace-go/millrace/middleware"
)

// benchmarkDistinct sends messages that are all different through mw, made beforehand in
// batches, so that only the middleware is measured.
func benchmarkDistinct(b *testing.B, mw message.HandlerMiddleware) {
	b.Helper()
	h := mw(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	batch := make([]*message.Message, 0, 10_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if len(batch) == 0 {
			b.StopTimer()
			for n := range cap(batch) {
				batch = append(batch, message.NewMessage(watermill.NewUUID(),
					fmt.Appendf(nil, `{"order_id":%d,"status":"paid"}`, i+n)))
			}
			b.StartTimer()
		}
		msg := batch[len(batch)-1]
		batch = batch[:len(batch)-1]
		if _, err := h(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDeduplicateMemory(b *testing.B) {
	claims := memoryLeases()
	benchmarkDistinct(b, millrace.Deduplicate{Claims: claims, Consumer: "mailer"}.Middleware)
}

func BenchmarkWatermillDeduplicator(b *testing.B) {
	benchmarkDistinct(b, (&middleware.Deduplicator{}).Middleware)
}
