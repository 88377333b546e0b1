// Package relayproc runs a relay in an operating system process of its own, so that a test
// can kill it or freeze it at a point of its work, or run several beside each other. With
// traffic the process is a service: it stores what its relay sends.
//
// The test is the broker, see [Broker]. Processes are those of package process; the program
// is the test binary itself, whose TestMain calls [Main] first.
package relayproc
