package servers_test

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

const childVariable = "MILLRACE_TEST_SERVERS_CHILD"

func TestServersDieWithTheTestBinary(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short runs no servers")
	}
	launches := map[string]func(testing.TB, ...string) *servers.Server{
		"PostgreSQL": servers.Postgres, "MariaDB": servers.MariaDB, "RabbitMQ": servers.RabbitMQ,
	}
	for _, name := range testdb.Sample(t, 1, slices.Sorted(maps.Keys(launches))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if os.Getenv(childVariable) != "" {
				fmt.Println(launches[name](t).Addr())
				select {} // until it is killed
			}
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
			child.Env = append(os.Environ(), childVariable+"=1")
			out, err := child.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, child.Start())
			lines := bufio.NewScanner(out)
			require.True(t, lines.Scan(), "the child printed nothing: %v", lines.Err())
			addr := lines.Text()
			if addr == "PASS" { // the child skipped its only test
				testdb.Missing(t, name, "see the other tests")
			}
			require.True(t, answering(addr), "%s does not answer", addr)
			require.NoError(t, child.Process.Kill())
			require.Error(t, child.Wait())
			require.Eventually(t, func() bool { return !answering(addr) },
				rig.Patience, 10*time.Millisecond, "%s outlived the test binary", name)
			left := filepath.Join(cmp.Or(os.Getenv("MILLRACE_TEST_DISK_FOLDER"), os.TempDir()), fmt.Sprintf("millrace-servers-%d-*", child.Process.Pid))
			servers.Sweep()
			found, err := filepath.Glob(left)
			require.NoError(t, err)
			assert.Empty(t, found)
		})
	}
}

func answering(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
