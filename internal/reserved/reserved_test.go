package reserved_test

import (
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
