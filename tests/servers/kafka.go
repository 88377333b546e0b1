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
	"sync"
	"syscall"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

// Kafka runs n brokers of t's own that are one cluster. Each is a controller too, so that the cluster works while more than
// half of them run. Settings are lines of server.properties such as "min.insync.replicas=2"; a dead broker is noticed within
// three seconds. MILLRACE_TEST_KAFKA_JARS names the folder of Kafka's libraries.
func Kafka(t testing.TB, n int, settings ...string) []*Server {
	t.Helper()
	jars := kafkaJars(t)
	ports, controllers, voters := make([]int, n), make([]int, n), make([]string, n)
	for i := range n {
		ports[i], controllers[i] = freePort(t), freePort(t)
		voters[i] = strconv.Itoa(i+1) + "@" + local(controllers[i])
	}
	brokers := make([]*Server, n)
	for i := range n {
		h, id := newHome(t, ""), strconv.Itoa(i+1)
		if err := os.Mkdir(h.path("data"), 0o755); err != nil {
			t.Fatal(err)
		}
		// Kafka's own tool would need a second JVM to write this file.
		h.write("data/meta.properties", "version=1\ncluster.id=bWlsbHJhY2UtdGVzdHMtMQ\nnode.id="+id+"\n")
		h.write("server.properties", strings.Join(append([]string{
			"process.roles=broker,controller", "node.id=" + id, "controller.quorum.voters=" + strings.Join(voters, ","),
			fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", local(ports[i]), local(controllers[i])),
			"advertised.listeners=PLAINTEXT://" + local(ports[i]), "controller.listener.names=CONTROLLER",
			"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT", "log.dirs=" + h.path("data"),
			"offsets.topic.num.partitions=3", "offsets.topic.replication.factor=" + strconv.Itoa(n),
			"group.initial.rebalance.delay.ms=0", "auto.create.topics.enable=false",
			"broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=500",
		}, settings...), "\n")+"\n")
		brokers[i] = &Server{
			t: t, name: "Kafka " + id, addr: local(ports[i]), dsn: local(ports[i]), home: h,
			command: func() *exec.Cmd { return h.java(jars, "kafka.Kafka", h.path("server.properties")) },
			ready:   listens(local(ports[i])), term: syscall.SIGTERM,
		}
		t.Cleanup(brokers[i].Kill)
	}
	var starting sync.WaitGroup // a broker starts when more than half of them do
	for _, b := range brokers {
		starting.Go(b.Start)
	}
	starting.Wait()
	for _, b := range brokers {
		if b.run == nil {
			t.FailNow()
		}
	}
	return brokers
}

func kafkaJars(t testing.TB) string {
	t.Helper()
	jars := os.Getenv("MILLRACE_TEST_KAFKA_JARS")
	if jars == "" {
		testdb.Missing(t, "Kafka", `set MILLRACE_TEST_KAFKA_JARS, or: eval "$(tests/services.sh)"`)
	}
	return jars
}

// KafkaConnect runs a standalone Kafka Connect of t's own with one connector, whose configuration are lines of a properties
// file. MILLRACE_TEST_DEBEZIUM names the folder of its libraries, with that of its plugins in it.
func KafkaConnect(t testing.TB, brokers []string, connector string) *Server {
	t.Helper()
	jars := os.Getenv("MILLRACE_TEST_DEBEZIUM")
	if jars == "" {
		testdb.Missing(t, "Debezium", `set MILLRACE_TEST_DEBEZIUM, or: MILLRACE_TEST_CLUSTER=1 eval "$(tests/services.sh)"`)
	}
	h, addr := newHome(t, ""), local(freePort(t))
	h.write("connector.properties", connector)
	h.write("worker.properties", strings.Join([]string{
		"bootstrap.servers=" + strings.Join(brokers, ","), "listeners=http://" + addr, "plugin.path=" + filepath.Join(jars, "plugins"),
		"key.converter=org.apache.kafka.connect.storage.StringConverter",
		"value.converter=org.apache.kafka.connect.storage.StringConverter",
		"offset.storage.file.filename=" + h.path("offsets"), "offset.flush.interval.ms=1000",
	}, "\n")+"\n")
	return launch(&Server{
		t: t, name: "Kafka Connect", addr: addr, dsn: "http://" + addr, home: h,
		command: func() *exec.Cmd {
			return h.java(jars, "org.apache.kafka.connect.cli.ConnectStandalone", h.path("worker.properties"), h.path("connector.properties"))
		},
		ready: func(ctx context.Context) error { return ready(ctx, "http://"+addr+"/connectors") }, term: syscall.SIGTERM,
	})
}

// java prepares a small JVM whose log is its standard error.
func (h *home) java(jars, class string, args ...string) *exec.Cmd {
	h.t.Helper()
	return h.cmd(program(h.t, "java", "/usr/bin"), append([]string{
		"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*"), class,
	}, args...)...)
}

func listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
