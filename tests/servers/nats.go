package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// NATSCluster runs a cluster of n NATS servers of t's own, with JetStream: of the installation in the
// folder that MILLRACE_TEST_NATS_ROOT names, or else the machine's own.
func NATSCluster(t testing.TB, n int) []*Server {
	t.Helper()
	nats := program(t, "nats-server", filepath.Join("/", os.Getenv("MILLRACE_TEST_NATS_ROOT"), "usr/sbin"))
	ports, routes := make([]int, n), make([]string, n)
	for i := range n {
		ports[i] = freePort(t)
		routes[i] = "nats://" + local(ports[i])
	}
	var nodes []*Server
	for i := range n {
		h, port := newHome(t, ""), freePort(t)
		nodes = append(nodes, &Server{
			t: t, name: fmt.Sprintf("node %d of NATS", i+1), addr: local(port), dsn: "nats://" + local(port), home: h, term: syscall.SIGTERM,
			command: func() *exec.Cmd {
				return h.cmd(nats, "--addr", "127.0.0.1", "--port", strconv.Itoa(port), "--name", "node"+strconv.Itoa(i+1),
					"--cluster_name", "millrace"+strconv.Itoa(ports[0]), "--cluster", "nats://"+local(ports[i]),
					"--routes", strings.Join(routes, ","), "--jetstream", "--store_dir", h.path("data"))
			},
			ready: func(ctx context.Context) error {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", local(port))
				if err != nil {
					return err
				}
				return conn.Close()
			},
		})
	}
	return launchAll(nodes)
}
