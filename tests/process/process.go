package process

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
)

// Process is a service that runs in a process of its own. It is killed when its test ends,
// at the latest. Its methods may be called from any goroutine but end the test on failure.
type Process struct {
	t     testing.TB
	cmd   *exec.Cmd
	said  *bytes.Buffer // on stderr; read it once gone is closed
	gone  chan struct{}
	stdin io.WriteCloser

	mu      sync.Mutex
	orders  *json.Encoder
	events  []Event
	changed chan struct{} // closed with the next event
}

// Start starts the test binary as a service and returns once its router runs.
func Start(t testing.TB, s Settings) *Process {
	t.Helper()
	return Self(t, serviceName, s)
}

// StartProgram is [Start] for a program built from the folder service.
func StartProgram(t testing.TB, program string, s Settings) *Process {
	t.Helper()
	return Launch(t, program, variable(serviceName), s)
}

// Launch starts a program of another kind that speaks as a service does. It finds its
// settings, in JSON, in the named environment variable.
func Launch(t testing.TB, program, variable string, s any) *Process {
	t.Helper()
	settings, err := json.Marshal(s)
	require.NoError(t, err)
	p := &Process{
		t: t, cmd: exec.Command(program), said: &bytes.Buffer{},
		gone: make(chan struct{}), changed: make(chan struct{}),
	}
	// The race detector has a process that ends by itself wait for a second.
	p.cmd.Env = append(os.Environ(), variable+"="+string(settings), "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	p.cmd.Stderr = p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	p.orders = json.NewEncoder(p.stdin)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.run(out))
	t.Cleanup(func() {
		if t.Failed() { // then it says where its goroutines are
			p.quit()
		}
		p.Kill()
		if t.Failed() {
			t.Logf("%s said at its end:\n%s", variable, p.said.Bytes()[max(0, p.said.Len()-50_000):])
		}
	})
	p.Await(Ready, 1)
	return p
}

// run starts the process and reads what it says to the end.
func (p *Process) run(out io.Reader) error {
	started := make(chan error)
	go func() {
		// Pdeathsig fires when the thread that started the child ends, so this one is kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := p.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		for decoder := json.NewDecoder(out); ; {
			var e Event
			if decoder.Decode(&e) != nil { // it is gone, perhaps in the middle of a line
				break
			}
			p.mu.Lock()
			p.events = append(p.events, e)
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
		_ = p.cmd.Wait() // how it ended is the test's doing
		close(p.gone)
	}()
	return <-started
}

// quit has a process that still runs end with the stacks of its goroutines.
func (p *Process) quit() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	select {
	case <-p.gone:
	case <-late.C: // it is frozen
	}
}

// Deliver hands d to the service. It does not wait for what becomes of it.
func (p *Process) Deliver(d Delivery) {
	p.t.Helper()
	p.order(Order{Do: ToDeliver, Delivery: d})
}

// GoOn lets the delivery that stopped at a point go on.
func (p *Process) GoOn() {
	p.t.Helper()
	p.order(Order{Do: ToGoOn})
}

func (p *Process) order(o Order) {
	p.t.Helper()
	p.mu.Lock()
	err := p.orders.Encode(o)
	p.mu.Unlock()
	if err != nil {
		p.Kill()
		require.NoError(p.t, err, "the service takes no orders\n%s", p.said)
	}
}

// Events returns everything of a kind that the service has said so far.
func (p *Process) Events(kind string) []Event {
	found, _ := p.look(kind)
	return found
}

// Await returns the events of a kind once there are n of them.
func (p *Process) Await(kind string, n int) []Event {
	p.t.Helper()
	late := time.NewTimer(rig.Patience)
	defer late.Stop()
	for {
		found, changed := p.look(kind)
		if len(found) >= n {
			return found
		}
		select {
		case <-changed:
		case <-p.gone:
			if found, _ = p.look(kind); len(found) >= n {
				return found
			}
			require.Fail(p.t, "the service ended", "%d of %d × %s\n%s", len(found), n, kind, p.story())
		case <-late.C:
			p.Kill()
			require.Fail(p.t, "the service is late", "%d of %d × %s\n%s", len(found), n, kind, p.story())
		}
	}
}

func (p *Process) look(kind string) (found []Event, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found, p.changed
}

// story is what a reader of a failure wants; the process must be gone.
func (p *Process) story() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("it said: %+v\n", p.events[max(0, len(p.events)-20):])
	return text + p.said.String()
}

// Said is what the process wrote to its standard error, once it is gone.
func (p *Process) Said() string {
	<-p.gone
	return p.said.String()
}

// Kill ends the process by SIGKILL, frozen or not, and returns once it is gone and
// everything it said is in [Process.Events].
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.gone
}

// Close lets the service end in order and returns what it counted.
func (p *Process) Close() map[string]int {
	p.t.Helper()
	p.order(Order{Do: ToClose})
	closed := p.Await(Closed, 1)[0]
	<-p.gone
	require.Empty(p.t, closed.Error, "the service did not close in order\n%s", p.said)
	return closed.Counts
}

// Freeze stops the process by SIGSTOP, as a host that froze, and returns once it stands.
func (p *Process) Freeze() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !p.stands() {
		select {
		case <-tick.C:
		case <-p.gone:
			require.Fail(p.t, "the service ended")
		}
	}
}

// Signal sends a signal, unless the process is gone.
func (p *Process) Signal(sig os.Signal) { _ = p.cmd.Process.Signal(sig) }

// stands reports whether the process is stopped, by the state behind its name in /proc.
func (p *Process) stands() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	_, state, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(state, "T")
}

// Thaw lets a frozen process go on.
func (p *Process) Thaw() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// Ended returns a channel that is closed once the process is gone and everything it said is
// in [Process.Events].
func (p *Process) Ended() <-chan struct{} { return p.gone }
