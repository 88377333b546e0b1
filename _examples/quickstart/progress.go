package main

import (
	"fmt"
	"os"
)

// progress shows how far the broker is: one line that is written over on a terminal, else
// one line per crash.
type progress struct {
	broker   *broker
	terminal bool
}

func newProgress(b *broker) *progress {
	info, err := os.Stdout.Stat()
	return &progress{broker: b, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

func (p *progress) String() string {
	count := p.broker.count
	return fmt.Sprintf("acked %d of %d, handler failures %d, crashes %d",
		count["acked"], len(p.broker.deliveries), count["failed"], count["crashed"])
}

func (p *progress) at() {
	if p.terminal && p.broker.count["acked"]%50 == 0 {
		fmt.Printf("\r%v ", p)
	}
}

func (p *progress) line() {
	if !p.terminal {
		fmt.Println(p)
	}
}

func (p *progress) end() {
	if p.terminal {
		fmt.Print("\r")
	}
	fmt.Printf("%v\n\n", p)
}
