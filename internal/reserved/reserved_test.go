package reserved_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/reserved"
)

func TestStripTakesWhatDescribesADelivery(t *testing.T) {
	md := message.Metadata{reserved.Redelivered: "true", "_millrace_x": "", "name": "n", "x_millrace_": "kept"}
	assert.Equal(t, message.Metadata{"name": "n", "x_millrace_": "kept"}, reserved.Strip(md))
	assert.Len(t, md, 4, "the message's own is left alone")
	assert.Nil(t, reserved.Strip(nil))
	plain := message.Metadata{"name": "n"}
	assert.Equal(t, plain, reserved.Strip(plain))
}

func TestOwnIsWhatEachDeliveryHas(t *testing.T) {
	md := message.Metadata{
		reserved.Redelivered: "true", "_watermill_amqp_redelivered": "true", "reason_poisoned": "boom",
		reserved.Replay: "may", reserved.ReplayAttempt: "1", reserved.Version: "1", "name": "n",
	}
	assert.Equal(t, message.Metadata{reserved.Version: "1", "name": "n"}, reserved.Own(md))
	assert.Len(t, md, 7, "the message's own is left alone")
	assert.Empty(t, reserved.Own(nil))
}

func TestReplayedCountsTheAttempt(t *testing.T) {
	most := strconv.Itoa(math.MaxInt)
	for before, want := range map[string]string{
		"": "1", "1": "2", "-5": "1", "x": "1", strconv.Itoa(math.MaxInt - 1): most, most: most, most + "0": most,
	} {
		again := reserved.Replayed(message.Metadata{reserved.ReplayAttempt: before}, "may")
		assert.Equal(t, want, again[reserved.ReplayAttempt], "after %q", before)
	}
}
