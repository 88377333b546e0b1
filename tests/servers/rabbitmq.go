package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// RabbitMQ runs a RabbitMQ of t's own, without plugins. Settings are lines of
// rabbitmq.conf such as "heartbeat = 10". Its user guest has the password guest.
func RabbitMQ(t testing.TB, settings ...string) *Server {
	t.Helper()
	skipOwn(t)
	// Debian's script in /usr/sbin changes the user and stays as the parent process.
	server := program(t, "rabbitmq-server", "/usr/lib/rabbitmq/bin")
	return launch(newRabbitMQ(t, newHome(t, ""), server, launchEPMD(t), freePort(t), settings))
}

// RabbitMQCluster runs a cluster of n nodes. It is the RabbitMQ of the installation in the folder that
// MILLRACE_TEST_RABBITMQ_ROOT names, which needs root, or else the machine's own.
func RabbitMQCluster(t testing.TB, n int, settings ...string) []*Server {
	t.Helper()
	server, root := "/usr/lib/rabbitmq/bin/rabbitmq-server", os.Getenv("MILLRACE_TEST_RABBITMQ_ROOT")
	if root == "" {
		server = program(t, "rabbitmq-server", "/usr/lib/rabbitmq/bin")
	}
	settings = append(settings, "cluster_formation.peer_discovery_backend = classic_config", "loopback_users = none")
	ports := make([]int, n)
	for i := range ports {
		ports[i] = freePort(t)
	}
	for i, port := range ports {
		settings = append(settings, fmt.Sprintf("cluster_formation.classic_config.nodes.%d = millrace%d@localhost", i+1, port))
	}
	names := launchEPMD(t)
	var nodes []*Server
	for i, port := range ports {
		h := newHomeIn(t, root, "")
		require.NoError(t, os.WriteFile(h.path(".erlang.cookie"), []byte("MILLRACE"), 0o400))
		s := newRabbitMQ(t, h, server, names, port, settings)
		s.name = fmt.Sprintf("node %d of RabbitMQ", i+1)
		nodes = append(nodes, s)
	}
	return launchAll(nodes)
}

func newRabbitMQ(t testing.TB, h *home, server, names string, port int, settings []string) *Server {
	t.Helper()
	distribution := freePort(t)
	h.write("rabbitmq.conf", strings.Join(append([]string{
		"listeners.tcp.local = " + local(port),
		"disk_free_limit.absolute = 50MB",
	}, settings...), "\n")+"\n")
	h.write("enabled_plugins", "[].\n")
	url := fmt.Sprintf("amqp://guest:guest@%s/", local(port))
	command := func() *exec.Cmd {
		cmd := h.cmd(server)
		cmd.Env = append(cmd.Env,
			"RUNNING_UNDER_SYSTEMD=true", // makes the script exec the server
			"RABBITMQ_NODENAME=millrace"+strconv.Itoa(port)+"@localhost",
			"RABBITMQ_CONF_ENV_FILE=/dev/null",
			"RABBITMQ_CONFIG_FILE="+h.inside("rabbitmq.conf"),
			"RABBITMQ_ENABLED_PLUGINS_FILE="+h.inside("enabled_plugins"),
			"RABBITMQ_MNESIA_BASE="+h.inside("mnesia"),
			"RABBITMQ_LOG_BASE="+h.inside("logs"),
			"RABBITMQ_LOGS=-",
			"RABBITMQ_PID_FILE="+h.inside("pid"),
			"RABBITMQ_DIST_PORT="+strconv.Itoa(distribution),
			"ERL_EPMD_PORT="+names,
			"ERL_EPMD_ADDRESS=127.0.0.1",
			"ERL_FLAGS=-kernel inet_dist_use_interface {127,0,0,1} -kernel net_ticktime 8"+
				" -rabbit consumer_disconnected_timeout 5000", // rabbitmq.conf of 3.10 does not know it
		)
		return cmd
	}
	return &Server{
		t: t, name: "RabbitMQ", addr: local(port), dsn: url, home: h,
		command: command, ready: dials(url), term: syscall.SIGTERM,
	}
}

func dials(url string) func(context.Context) error {
	return func(context.Context) error {
		conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// launchEPMD runs an Erlang name server of t's own and returns its port. Without
// it, the broker would start a shared one and leave it behind.
func launchEPMD(t testing.TB) string {
	t.Helper()
	epmd := program(t, "epmd", "/usr/lib/erlang/erts-*/bin")
	h := newHome(t, "")
	port := freePort(t)
	s := launch(&Server{
		t: t, name: "epmd", addr: local(port), home: h, term: syscall.SIGTERM,
		command: func() *exec.Cmd {
			return h.cmd(epmd, "-port", strconv.Itoa(port), "-address", "127.0.0.1")
		},
		ready: listens(local(port)),
	})
	_, number, _ := net.SplitHostPort(s.Addr()) // local joined it
	return number
}
