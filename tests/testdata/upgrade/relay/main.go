// Command relay is a relay in a process of its own, see package relayproc. The source of the release
// before builds it too.
package main

import "github.com/millrace-go/millrace/tests/outbox/relayproc"

func main() { relayproc.Main() }
