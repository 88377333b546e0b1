package process

import "time"

// Settings are what a service is started with.
type Settings struct {
	Driver string
	DSN    string
	Pool   int // greatest number of connections

	// Produce is how many messages the handler returns. A service that returns some keeps
	// them as outcomes and publishes them to the test.
	Produce int

	// Marks is a folder that all services of a test share: it tells a first run from later
	// ones for deliveries with FailFirst.
	Marks string

	Timeout  time.Duration // of the inbox; 0 is its default
	TwinWait time.Duration // likewise
}

// Point is a place in the life of a delivery.
type Point string

// Points in the order in which a delivery passes them.
const (
	BeforeClaim   Point = "before the claim"
	AfterClaim    Point = "after the claim"
	InHandler     Point = "inside the handler"
	BeforeCommit  Point = "before the commit"
	AfterCommit   Point = "after the commit"
	BeforePublish Point = "before publishing"
	MidPublish    Point = "between two publishes"
	AfterPublish  Point = "after publishing, before the ack"
	BeforeSettle  Point = "after the ack, before settling"
	MidSettle     Point = "before the commit of settling"
)

// FirstRun is where the first run of a delivery with FailFirst stops, before it fails.
const FirstRun Point = "the run that fails"

// Points returns every point at which a process may die.
func Points() []Point {
	return []Point{
		BeforeClaim, AfterClaim, InHandler, BeforeCommit, AfterCommit,
		BeforePublish, MidPublish, AfterPublish, BeforeSettle, MidSettle,
	}
}

// Message is a message on its way through a pipe.
type Message struct {
	UUID     string
	Metadata map[string]string
	Payload  []byte
}

// Delivery is a message and what is to happen to it.
type Delivery struct {
	Message

	Copies    int   // delivered at once; 0 is one
	Stop      Point // where the first copy that comes by stops
	FailFirst bool  // the first run of all services stops at FirstRun and then fails
}

// Order is a line from the test to the service.
type Order struct {
	Do       string // one of the constants
	Delivery Delivery
}

// What a service is told to do.
const (
	ToDeliver = "deliver"
	ToGoOn    = "go on"
	ToClose   = "close"
)

// Event is a line from the service to the test.
type Event struct {
	Kind      string         // one of the constants
	UUID      string         // of the delivered message
	Point     Point          // of At
	Error     string         // of Failed, and of Closed where something went wrong
	Published *Message       // of Published
	Counts    map[string]int // of Closed: how often each observer was called
}

// Kinds of events.
const (
	Ready     = "ready"     // the router runs
	At        = "at"        // a delivery reached its point
	Failed    = "failed"    // a delivery's error, as the router sees it
	Acked     = "acked"     // a delivery was acked
	Nacked    = "nacked"    // a delivery was nacked
	Published = "published" // the broker has a produced message
	Closed    = "closed"    // the service ended in order
)
