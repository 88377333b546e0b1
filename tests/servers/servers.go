// Package servers runs private database and broker instances that a test may
// kill, stop, freeze and start again: [Postgres], [PostgresPair], [MariaDB], [Galera], [RabbitMQ],
// [RabbitMQCluster], [NATSCluster], [Kafka], [PgBouncer], [Prometheus], and [Proxy], a TCP proxy for cut, frozen
// and slow networks.
//
// Each instance has its own folder and port, which survive a restart. It ends
// with its test, and with the test binary even if that is killed. Programs are
// searched for in Debian's folders, then in PATH; a test that lacks one is
// skipped, or fails if MILLRACE_TEST_ALL is 1. Linux only.
package servers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// Server is one instance. Its methods may be called from any goroutine. They
// report problems as errors of the test and then return.
type Server struct {
	t       testing.TB
	name    string
	addr    string
	dsn     string
	home    *home
	command func() *exec.Cmd
	ready   func(ctx context.Context) error
	term    syscall.Signal // asks for an orderly end

	mu  sync.Mutex
	run *process // nil while down
}

// Addr returns the host and port that it listens on, the same after every Start.
func (s *Server) Addr() string { return s.addr }

// DSN returns the address for clients, for the driver that testdb uses.
func (s *Server) DSN() string { return s.dsn }

// URL is [Server.DSN] under the name that broker clients use.
func (s *Server) URL() string { return s.dsn }

// Start starts the server and returns once it answers. It does nothing if the server runs.
func (s *Server) Start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		return
	}
	p, err := start(s.command(), s.home.log())
	if err != nil {
		s.t.Errorf("start %s: %v", s.name, err)
		return
	}
	if err := s.await(p); err != nil {
		p.kill()
		s.t.Errorf("start %s: %v\n%s", s.name, err, s.home.tail())
		return
	}
	s.run = p
}

// Kill ends the server and its child processes by SIGKILL, and returns once they are
// gone. It does nothing if the server is down.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.kill()
		s.run = nil
	}
}

// Restart stops the server and starts it again. Call it after declaring queues on a RabbitMQ that
// will be killed: RabbitMQ stores them some time after it confirmed them, or when it stops.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Stop shuts the server down and returns once it is gone. A server that does not end within
// a minute is killed, and the test fails.
func (s *Server) Stop() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return
	}
	if !s.run.end(s.term, time.Minute) {
		s.t.Errorf("stop %s: it did not end\n%s", s.name, s.home.tail())
	}
	s.run = nil
}

// Freeze stops the server and its child processes by SIGSTOP: the server keeps its
// connections and answers nothing.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.signalAll(sig)
	}
}

// launch starts s for the first time and ends it with its test.
func launch(s *Server) *Server {
	s.t.Helper()
	s.t.Cleanup(s.Kill) // before home's own cleanup removes the folder
	s.Start()
	if s.run == nil {
		s.t.FailNow()
	}
	return s
}

// launchAll starts the nodes of a cluster at once: they wait for each other.
func launchAll(nodes []*Server) []*Server {
	var starts sync.WaitGroup
	for _, s := range nodes {
		s.t.Cleanup(s.Kill)
		starts.Go(s.Start)
	}
	starts.Wait()
	for _, s := range nodes {
		if s.run == nil {
			s.t.FailNow()
		}
	}
	return nodes
}

func (s *Server) await(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		attempt, done := context.WithTimeout(ctx, 5*time.Second)
		err := s.ready(attempt)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-p.gone:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return err
		case <-again.C:
		}
	}
}

// skipOwn skips a test that runs the machine's own server where another is to be tried.
func skipOwn(t testing.TB) {
	t.Helper()
	if os.Getenv("MILLRACE_TEST_ONLY") != "" {
		t.Skip("MILLRACE_TEST_ONLY leaves out servers of the machine's own")
	}
}

// program finds an executable in folders, which are patterns, or else in PATH.
// It ends the test if there is none; -short tests run no servers.
func program(t testing.TB, name string, folders ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short runs no %s", name)
	}
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join(folder, name))
		require.NoError(t, err)
		if len(found) > 0 {
			return found[len(found)-1]
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		testdb.Missing(t, name, `install it, or: eval "$(tests/services.sh)"`)
	}
	return path
}

// root reports whether we are root: some servers then need another user.
func root() bool { return os.Geteuid() == 0 }
