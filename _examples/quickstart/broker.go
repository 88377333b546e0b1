package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
)

// broker delivers payments to the service, which is another process, and delivers again
// what was not acked. It has a bad day: half of the payments come twice, and none in order.
type broker struct {
	deliveries []delivery
	acked      []bool
	balances   map[int]int    // of each account, when all is posted
	count      map[string]int // of each event
}

// delivery is what the broker sends to the service, one JSON object a line. The service
// answers with lines that name an event and the delivery's number.
type delivery struct {
	Number  int
	UUID    string
	Payload json.RawMessage
}

func newBroker() *broker {
	b := &broker{balances: make(map[int]int), count: make(map[string]int)}
	for range payments {
		p := payment{Account: rand.IntN(accounts), Amount: rand.IntN(1_000_000)}
		b.balances[p.Account] += p.Amount
		payload, _ := json.Marshal(p) // two numbers: cannot fail
		d := delivery{UUID: watermill.NewUUID(), Payload: payload}
		for range 1 + rand.IntN(2) {
			b.deliveries = append(b.deliveries, d)
		}
	}
	rand.Shuffle(len(b.deliveries), func(i, j int) {
		b.deliveries[i], b.deliveries[j] = b.deliveries[j], b.deliveries[i]
	})
	for i := range b.deliveries {
		b.deliveries[i].Number = i
	}
	b.acked = make([]bool, len(b.deliveries))
	return b
}

// run starts the service again after each crash, until all is acked.
func (b *broker) run(file string) error {
	show := newProgress(b)
	defer show.end()
	for left := crashes; left > 0; left-- {
		share := (payments - b.count["completed"]) / (left + 1)
		if err := b.feed(file, share/2+rand.IntN(share), show); err != nil {
			return err
		}
		b.count["crashed"]++
		show.line()
	}
	return b.feed(file, never, show)
}

const never = -1

// feed starts the service, sends it what is not acked, and kills it after so many payments.
func (b *broker) feed(file string, killAfter int, show *progress) error {
	service := exec.Command(os.Args[0], "-serve", file)
	service.Stderr = os.Stderr
	input, err := service.StdinPipe()
	if err != nil {
		return err
	}
	output, err := service.StdoutPipe()
	if err != nil {
		return err
	}
	if err := service.Start(); err != nil {
		return err
	}
	go send(input, b.unacked())

	killed := false
	for lines := bufio.NewScanner(output); lines.Scan(); {
		event, number, _ := strings.Cut(lines.Text(), " ")
		if event == "acked" && killed {
			continue // lost with the connection: a delivery that was handled will come again
		}
		b.count[event]++
		switch event {
		case "completed":
			killAfter--
			if killAfter == 0 {
				killed = true
				err = service.Process.Kill()
			}
		case "acked":
			err = b.ack(number)
			if b.count["acked"] == len(b.deliveries) {
				err = errors.Join(err, input.Close()) // the service ends when its input does
			}
			show.at()
		}
		if err != nil {
			return err
		}
	}
	if err := service.Wait(); err != nil && !killed {
		return fmt.Errorf("the service died by itself: %w", err)
	}
	return nil
}

func (b *broker) ack(number string) error {
	i, err := strconv.Atoi(number)
	if err == nil {
		b.acked[i] = true
	}
	return err
}

func (b *broker) unacked() []delivery {
	var list []delivery
	for i, d := range b.deliveries {
		if !b.acked[i] {
			list = append(list, d)
		}
	}
	return list
}

// send ends early when the service dies.
func send(to io.Writer, list []delivery) {
	lines := json.NewEncoder(to)
	for _, d := range list {
		if err := lines.Encode(d); err != nil {
			return
		}
	}
}
