// Package suite has Watermill's suite of tests for pub/subs wait as long as the other tests. Importing it is enough.
package suite

import (
	"time"
	_ "unsafe" // for go:linkname

	_ "github.com/ThreeDotsLabs/watermill/pubsub/tests" // the suite

	"github.com/millrace-go/millrace/tests/rig"
)

// defaultTimeout is for how long the suite waits. Only a build tag sets it, which doubles GOMAXPROCS as well.
//
//go:linkname defaultTimeout github.com/ThreeDotsLabs/watermill/pubsub/tests.defaultTimeout
var defaultTimeout time.Duration

func init() { defaultTimeout = rig.Patience }
