package servers

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"

	_ "github.com/go-sql-driver/mysql" // registers "mysql"
)

// MariaDB runs a MariaDB of t's own. Settings are those of the command line
// without their dashes, such as "innodb-lock-wait-timeout=5". Its user root needs
// no password.
func MariaDB(t testing.TB, settings ...string) *Server {
	t.Helper()
	return launch(newMariaDB(t, settings))
}

func newMariaDB(t testing.TB, settings []string) *Server {
	t.Helper()
	skipOwn(t)
	installDB := program(t, "mariadb-install-db", "/usr/bin")
	mariadbd := program(t, "mariadbd", "/usr/sbin")
	h := newHome(t, "mysql")
	port := freePort(t)
	common := func(dir string) []string {
		return []string{
			"--no-defaults", // must come first
			"--datadir=" + dir + "/data",
			"--tmpdir=" + dir, // instances use the same names for temporary tables
			"--innodb-log-file-size=16M",
			"--innodb-buffer-pool-size=32M",
			"--innodb-use-native-aio=0", // many instances would exhaust the kernel's
		}
	}
	h.install(installDB, func(dir string) []string {
		return append(common(dir), "--auth-root-authentication-method=normal", "--skip-test-db")
	})
	args := slices.Concat(common(h.dir), []string{
		"--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--socket=" + h.path("socket"), "--pid-file=" + h.path("pid"),
		"--skip-name-resolve", "--max-connections=200",
	})
	for _, s := range settings {
		args = append(args, "--"+s)
	}
	dsn := fmt.Sprintf("root@tcp(%s)/", local(port))
	return &Server{
		t: t, name: "MariaDB", addr: local(port), dsn: dsn, home: h,
		command: func() *exec.Cmd { return h.cmd(mariadbd, args...) },
		ready:   answers("mysql", dsn),
		term:    syscall.SIGTERM,
	}
}
