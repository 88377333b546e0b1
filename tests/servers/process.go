package servers

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a running child.
type process struct {
	pid  int
	gone chan struct{} // closed once it is reaped
}

// start starts cmd so that it dies with this process, and appends its output to log.
func start(cmd *exec.Cmd, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // so that an interrupt at the terminal does not reach it
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL

	p := &process{gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Pdeathsig fires when the thread that started the child ends, so keep
		// this thread until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // the test decides how it ends
		close(p.gone)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// end sends sig and reports whether the process ended in time. If not, it kills the process.
func (p *process) end(sig syscall.Signal, limit time.Duration) bool {
	family := p.family()
	_ = syscall.Kill(p.pid, sig) // it may be gone already
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-p.gone:
		awaitEnd(family)
		return true
	case <-late.C:
		p.kill()
		return false
	}
}

// kill ends the process and its descendants at once and waits until they are
// gone. It stops them first, so that none starts another one meanwhile.
func (p *process) kill() {
	family := p.signalAll(syscall.SIGSTOP)
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone already
	}
	<-p.gone
	awaitEnd(family)
}

// signalAll signals the process, then its descendants, and returns their ids.
func (p *process) signalAll(sig syscall.Signal) []int {
	signalled := map[int]bool{}
	for {
		family, found := p.family(), false
		for _, pid := range family {
			if !signalled[pid] {
				signalled[pid], found = true, true
				_ = syscall.Kill(pid, sig) // it may be gone already
			}
		}
		if !found {
			return family
		}
	}
}

// family returns the ids of the process and all its descendants, parents first,
// or none once the process is gone.
func (p *process) family() []int {
	select {
	case <-p.gone:
		return nil
	default:
	}
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc") // readable on Linux
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, _, found := stat(pid); found {
			children[parent] = append(children[parent], pid)
		}
	}
	family := []int{p.pid}
	for i := 0; i < len(family); i++ {
		family = append(family, children[family[i]]...)
	}
	return family
}

// awaitEnd waits until no process of pids runs, for at most ten seconds.
func awaitEnd(pids []int) {
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for _, pid := range pids {
		for {
			_, state, found := stat(pid)
			if !found || state == "Z" || state == "X" {
				break
			}
			select {
			case <-again.C:
			case <-late.C:
				return
			}
		}
	}
}

// stat reads a process's parent and state.
func stat(pid int) (parent int, state string, found bool) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", false
	}
	// The name in parentheses may itself contain spaces and parentheses.
	fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
	if len(fields) < 2 {
		return 0, "", false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, fields[0], err == nil
}
