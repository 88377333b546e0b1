package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is this program again, with other arguments.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{}
	err  error // once it is gone
}

// start starts a process. Each line that it prints is given to hear.
func start(hear func(line string), args ...string) (*process, error) {
	p := &process{cmd: exec.Command(os.Args[0], args...), gone: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.gone)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			hear(lines.Text())
		}
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// until waits for a condition, as long as the process lives.
func (p *process) until(ctx context.Context, condition func() (bool, error)) error {
	for {
		if met, err := condition(); met || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.gone:
			return fmt.Errorf("a process died by itself: %w", p.err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the process with SIGKILL, whatever it is doing.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.gone
}

// stop ends the process in good order.
func (p *process) stop() error {
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.gone
	return errors.Join(err, p.err)
}
