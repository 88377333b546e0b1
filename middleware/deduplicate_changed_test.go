package middleware_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

// TestDeduplicateGivesTheMessageBack: each attempt has the message, and so the key, that the
// first had.
func TestDeduplicateGivesTheMessageBack(t *testing.T) {
	leases := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	dedup := millrace.Deduplicate{Claims: leases, Consumer: "mail", Key: inbox.ByPayload()}
	sent := 0
	handle := func(msg *message.Message) ([]*message.Message, error) {
		assert.Equal(t, "as it came", string(msg.Payload))
		copy(msg.Payload, "xx")
		msg.Metadata.Set("changed", "true")
		sent++
		if sent == 1 {
			return nil, errors.New("it fails")
		}
		return nil, nil
	}
	after := 0
	flaky := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if _, err := h(msg); err != nil {
				return nil, err
			}
			after++
			if after == 1 {
				return nil, errors.New("it fails afterwards")
			}
			return nil, nil
		}
	}
	retry := wmiddleware.Retry{MaxRetries: 5, InitialInterval: time.Millisecond}
	msg := message.NewMessage("1", []byte("as it came"))
	_, err := retry.Middleware(flaky(dedup.Middleware(handle)))(msg)
	require.NoError(t, err)
	assert.Equal(t, 2, sent, "once more after its failure, and not after its success")
	assert.Equal(t, "as it came", string(msg.Payload))
	assert.Empty(t, msg.Metadata)
}
