package servers

import (
	"fmt"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// PgBouncer runs a PgBouncer of t's own in transaction mode in front of the
// PostgreSQL at dsn. It passes every database name through and lets any client
// in. Settings are lines of its [pgbouncer] section such as "default_pool_size=5".
func PgBouncer(t testing.TB, dsn string, settings ...string) *Server {
	t.Helper()
	pgbouncer := program(t, "pgbouncer", "/usr/sbin")
	target, client, err := bouncerTarget(dsn)
	if err != nil {
		t.Fatal(err)
	}
	h := newHome(t, "postgres") // it refuses to run as root
	port := freePort(t)
	client.Host = local(port)
	lines := append([]string{
		"[databases]", "* = " + target,
		"[pgbouncer]",
		"listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(port), "unix_socket_dir =",
		"auth_type = any", "pool_mode = transaction",
		"server_login_retry = 1", // a busy server may not take a connection at once
		"default_pool_size = 20", "max_client_conn = 1000",
		"ignore_startup_parameters = extra_float_digits",
	}, settings...)
	if preparesStatements(h, pgbouncer) {
		lines = append(lines, "max_prepared_statements = 0")
	}
	h.write("pgbouncer.ini", strings.Join(lines, "\n")+"\n")
	return launch(&Server{
		t: t, name: "PgBouncer", addr: local(port), dsn: client.String(), home: h,
		command: func() *exec.Cmd { return h.cmd(pgbouncer, h.path("pgbouncer.ini")) },
		ready:   answers("pgx", client.String()),
		term:    syscall.SIGTERM,
	})
}

// bouncerTarget returns the target for the bouncer, with the credentials of dsn,
// and dsn as a URL.
func bouncerTarget(dsn string) (target string, u *url.URL, err error) {
	u, err = url.Parse(dsn)
	if err != nil {
		return "", nil, err
	}
	port := u.Port()
	if port == "" {
		port = "5432"
	}
	target = fmt.Sprintf("host=%s port=%s user=%s", u.Hostname(), port, u.User.Username())
	if password, set := u.User.Password(); set {
		target += " password=" + password
	}
	return target, u, nil
}

// preparesStatements reports whether this bouncer knows max_prepared_statements:
// 1.21 and later do, earlier ones refuse the setting.
func preparesStatements(h *home, pgbouncer string) bool {
	out, err := h.cmd(pgbouncer, "--version").Output()
	if err != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 1 || minor >= 21
}
