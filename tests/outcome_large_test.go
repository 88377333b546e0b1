package tests_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// MySQL closes a connection on which somebody sends more than a packet. What a handler leaves that is larger is named, and is
// not redelivered at once.
func TestWhatAHandlerLeavesBeyondThePacket(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"outcomes", "results", "journal", "blobs"} {
		t.Run(table, func(t *testing.T) { // one after the other: each takes much memory
			b := newBed(t, testdb.On(t, "mysql"))
			pool, large := faults.Open(t, b.db), strings.Repeat("x", b.count(`SELECT @@max_allowed_packet`)+1<<20)
			config, payload := inbox.Config{}, table
			journals := table == "journal" || table == "blobs"
			if journals {
				payload = large
			}
			if table == "blobs" {
				config.BlobsAbove = 1 << 10
			}
			b.store = b.newStore(pool.DB, config)
			s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
				switch string(msg.Payload) {
				case "outcomes":
					return []*message.Message{newMessage(large)}, nil
				case "results":
					return nil, inbox.SetResult(msg.Context(), large)
				}
				return effect(msg)
			}, millrace.Inbox{Store: b.store, Timeout: rig.Patience, Options: inbox.Options{Journal: journals}}.Middleware)
			assert.True(t, s.deliver(newMessage("small")))
			pool.Set(faults.Plan{Before: faults.Lose("INSERT INTO millrace_" + table)})
			assert.False(t, s.deliver(newMessage(payload)))
			require.ErrorContains(t, b.events.Last("failed").Err, "max_allowed_packet")
			if table != "outcomes" {
				return
			}
			for range 2 {
				assert.False(t, s.deliver(newMessage(payload)))
			}
			began := time.Now()
			assert.False(t, s.deliver(newMessage(payload)))
			assert.GreaterOrEqual(t, time.Since(began), 400*time.Millisecond, "its source redelivers it at once")
		})
	}
}
