package relayproc

import (
	"testing"
	"time"

	"github.com/millrace-go/millrace/tests/process"
)

// Settings are what a relay is started with.
type Settings struct {
	Driver string
	DSN    string // on MySQL with interpolateParams: else not every point can be reached
	Name   string // of the relay
	Broker string // address of a Broker

	Lease time.Duration
	Batch int // 0 is the default
	Lanes int // 0 is the default

	Stop Point // where it stops, until [process.Process.GoOn] or its end
	Skip int   // how often it passes that point before
	End  Point // where it is told to stop in order

	// Unaware has the database keep the relay waiting where it asks for its lease, from Stop on until
	// what it was publishing then is through: it has to know by its clock that the lease is over.
	Unaware bool

	Traffic int // how many workers store messages
}

// Point is a place in the life of a relay.
type Point string

// Points in the order in which a relay passes them.
const (
	AfterJoin      Point = "registered, without a shard"
	AfterClaim     Point = "after taking shards"
	BeforeLoad     Point = "before listing the keys"
	AfterRead      Point = "after reading"
	BeforePublish  Point = "before publishing"
	MidPublish     Point = "in the middle of a publish call"
	AfterPublish   Point = "after publishing"
	BeforeWriteOff Point = "before recording the results"
	AfterWriteOff  Point = "after recording the results"
	AfterHold      Point = "after setting a head aside and holding back the messages behind it"
	AfterPostpone  Point = "after setting a head aside"
	BeforeRelease  Point = "a sent head deleted, the messages behind it not yet read"
	BeforeBeat     Point = "before a heartbeat"
	AfterBeat      Point = "after a heartbeat"
	MidReplace     Point = "before the commit that replaces the shards of an earlier release"
	AfterReplace   Point = "after the commit that replaces the shards of an earlier release"
	BeforeLeave    Point = "before giving up all shards"
	MidLeave       Point = "its shards given up, but still registered"
)

// Left is what Counts of an event at [MidPublish] says: how many messages of the call the
// broker does not have yet.
const Left = "left"

// Share is the kind of event that tells of how many shards the relay was told it owns, by
// Counts["shards"].
const Share = "share"

// name is the relay's among the programs that the test binary can be.
const name = "RELAY"

// Start starts the test binary as a relay, and returns once it runs.
func Start(t testing.TB, s Settings) *process.Process {
	t.Helper()
	return process.Self(t, name, s)
}

// StartProgram is [Start] for a program that calls [Main], of a release that takes more settings than this one.
func StartProgram(t testing.TB, program string, s any) *process.Process {
	t.Helper()
	return process.Launch(t, program, "MILLRACE_TEST_"+name, s)
}
