package original_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/original"
)

// BenchmarkKeep is what the rule costs a delivery: a kilobyte and three fields of metadata are
// copied by the plugin, compared on entry, and compared again on exit.
func BenchmarkKeep(b *testing.B) {
	msg := message.NewMessage("1", make([]byte, 1024))
	msg.Metadata = message.Metadata{"name": "order", "aggregate": "a", "version": "1"}
	b.ReportAllocs()
	for b.Loop() {
		msg.SetContext(b.Context())
		original.Keep(msg)
		d := original.Arrive(msg)
		d.HandOver(msg)
		d.Restore(msg)
	}
}
