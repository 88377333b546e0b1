package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Self starts the test binary as the program of that name, whose TestMain has called [As] for it.
func Self(t testing.TB, name string, settings any) *Process {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	return Launch(t, binary, variable(name), settings)
}

// variable holds the settings of a process that is to be the program of that name.
func variable(name string) string { return "MILLRACE_TEST_" + name }

// As runs the program of that name and ends the process, if this one was started to be it. Otherwise it
// returns at once.
func As[S any](name string, run func(*Child, S) error) {
	text := os.Getenv(variable(name))
	if text == "" {
		return
	}
	var settings S
	err := json.Unmarshal([]byte(text), &settings)
	if err == nil {
		err = run(&Child{lines: json.NewEncoder(os.Stdout), orders: json.NewDecoder(os.Stdin)}, settings)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Child is how a program speaks with the test that started it.
type Child struct {
	writing sync.Mutex
	lines   *json.Encoder
	orders  *json.Decoder
}

// Say tells the test. It may be called by several goroutines.
func (c *Child) Say(e Event) {
	c.writing.Lock()
	err := c.lines.Encode(e)
	c.writing.Unlock()
	if err != nil {
		os.Exit(2) // nobody listens any more
	}
}

// Closed tells the test that the program has ended, and how.
func (c *Child) Closed(err error, counts map[string]int) {
	closed := Event{Kind: Closed, Counts: counts}
	if err != nil {
		closed.Error = err.Error()
	}
	c.Say(closed)
}

// Order returns the test's next order. A test that is gone is an error.
func (c *Child) Order() (Order, error) {
	var o Order
	err := c.orders.Decode(&o)
	if errors.Is(err, io.EOF) {
		err = errors.New("the test is gone")
	}
	if err == nil && o.Do != ToDeliver && o.Do != ToGoOn && o.Do != ToClose {
		err = fmt.Errorf("unknown order %q", o.Do)
	}
	return o, err
}

// Hand hands msg to take, and tells the test what becomes of it.
func (c *Child) Hand(msg *message.Message, take func(*message.Message)) {
	uuid := msg.UUID
	take(msg)
	select {
	case <-msg.Acked():
		c.Say(Event{Kind: Acked, UUID: uuid})
	case <-msg.Nacked():
		c.Say(Event{Kind: Nacked, UUID: uuid})
	}
}

// Copy returns a copy of the message, as a broker would deliver it.
func (d Delivery) Copy() *message.Message {
	msg := message.NewMessage(d.UUID, d.Payload)
	for k, v := range d.Metadata {
		msg.Metadata.Set(k, v)
	}
	return msg
}
