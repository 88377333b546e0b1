package servers

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
)

// Galera runs a cluster of n MariaDB servers of t's own that all take writes, with settings as for
// [MariaDB]. A node that was killed and starts again is copied whole from another one.
func Galera(t testing.TB, n int, settings ...string) []*Server {
	t.Helper()
	provider := program(t, "libgalera_smm.so", "/usr/lib/galera")
	program(t, "rsync", "/usr/bin") // for wsrep_sst_rsync
	group := make([]string, n)
	for i := range group {
		group[i] = local(freePort(t))
	}
	var nodes []*Server
	for i, listens := range group {
		s := newMariaDB(t, append([]string{
			"binlog-format=ROW", "innodb-autoinc-lock-mode=2", "wsrep-on=ON", "wsrep-provider=" + provider,
			"wsrep-cluster-name=" + group[0], "wsrep-cluster-address=gcomm://" + strings.Join(group, ","),
			"wsrep-node-name=node" + strconv.Itoa(i+1), "wsrep-node-address=127.0.0.1",
			"wsrep-sst-method=rsync", "wsrep-sst-receive-address=" + local(freePort(t)),
			"wsrep-provider-options=gcache.size=32M;gmcast.listen_addr=tcp://" + listens +
				";ist.recv_addr=" + local(freePort(t)),
		}, settings...))
		s.name, s.ready = fmt.Sprintf("node %d of Galera", i+1), synced(s.dsn)
		if i == 0 {
			s.command = bootstrapping(s.command)
		}
		nodes = append(nodes, launch(s))
	}
	return nodes
}

// bootstrapping makes the first command found the cluster.
func bootstrapping(command func() *exec.Cmd) func() *exec.Cmd {
	founded := false
	return func() *exec.Cmd {
		cmd := command()
		if !founded {
			cmd.Args = append(cmd.Args, "--wsrep-new-cluster")
		}
		founded = true
		return cmd
	}
}

// synced returns a function that fails until a node has all that the others have.
func synced(dsn string) func(context.Context) error {
	return func(ctx context.Context) error {
		db, err := sqlx.Open("mysql", dsn)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }() // it only read
		var name, state string
		err = db.QueryRowContext(ctx, `SHOW STATUS LIKE 'wsrep_local_state_comment'`).Scan(&name, &state)
		if err == nil && state != "Synced" {
			err = fmt.Errorf("the node is %s", state)
		}
		return err
	}
}
