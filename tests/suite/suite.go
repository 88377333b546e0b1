// Package suite has Watermill's suite of tests for pub/subs wait as long as the other tests. Importing it is enough for that.
package suite

import (
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/ThreeDotsLabs/watermill/pubsub/tests" // the suite
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/rig"
)

// defaultTimeout is for how long the suite waits. Only a build tag sets it, which doubles GOMAXPROCS as well.
//
//go:linkname defaultTimeout github.com/ThreeDotsLabs/watermill/pubsub/tests.defaultTimeout
var defaultTimeout time.Duration

func init() { defaultTimeout = rig.Patience }

// Ends returns s, which ends with the test: the suite leaves some subscribers open, and they would ask a closed database
// for messages until the test binary ends.
func Ends(t *testing.T, s message.Subscriber) message.Subscriber {
	t.Helper()
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}
