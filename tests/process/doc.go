// Package process runs a service in an operating system process of its own, so that a test
// can kill it, freeze it, or run several beside each other.
//
// The test is the broker: [Process.Deliver] hands a message to the service's Watermill
// router, and the [Event]s tell what became of it and what was published. A delivery can
// name a [Point] at which the service stops, until [Process.GoOn] or its end. What the
// service said before it was killed is never lost.
//
// The program is the test binary itself, whose TestMain calls [Main] first, or one built
// from the folder service, by the source of another release too: the lines exchanged must
// stay as they are. A test binary can be other programs, too: [As] says what one does, and
// [Self] starts it. What it wrote to its standard error is in the log of a test that fails.
package process
