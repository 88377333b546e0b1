package interop_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestClusterGaleraSmoke(t *testing.T) {
	if os.Getenv("MILLRACE_TEST_CLUSTER") != "1" {
		t.Skip()
	}
	nodes := servers.Galera(t, 3)
	first := testdb.At(t, "mysql", nodes[0].DSN())
	second, third := first.Open(t, testdb.Via(nodes[1].Addr())), first.Open(t, testdb.Via(nodes[2].Addr()))
	first.Do(t, `CREATE TABLE t (id INT PRIMARY KEY)`)
	nodes[2].Kill()
	second.Do(t, `INSERT INTO t VALUES (7)`)
	nodes[2].Start()
	require.Equal(t, 1, third.Count(t, `SELECT COUNT(*) FROM t`))
}
