package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
)

const debianPostgres = "/usr/lib/postgresql/*/bin"

// Postgres runs a PostgreSQL of t's own. Settings are lines of postgresql.conf
// such as "lock_timeout=5s". Its user postgres needs no password.
func Postgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	initdb := program(t, "initdb", debianPostgres)
	s := newPostgres(t, settings)
	s.home.install(initdb, func(dir string) []string {
		return []string{"--pgdata", dir + "/data", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"}
	})
	return launch(s)
}

// newPostgres returns a PostgreSQL without data.
func newPostgres(t testing.TB, settings []string) *Server {
	t.Helper()
	skipOwn(t)
	postgres := program(t, "postgres", debianPostgres)
	h := newHome(t, "postgres")
	port := freePort(t)
	args := []string{
		"-D", h.path("data"),
		"-c", "port=" + strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=",
		"-c", "max_connections=200",
		"-c", "dynamic_shared_memory_type=mmap", // in the folder: in /dev/shm a killed server leaves it behind
	}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	dsn := fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", local(port))
	return &Server{
		t: t, name: "PostgreSQL", addr: local(port), dsn: dsn, home: h,
		command: func() *exec.Cmd { return h.cmd(postgres, args...) },
		ready:   answers("pgx", dsn),
		term:    syscall.SIGINT, // does not wait for clients
	}
}

// answers returns a function that pings a database on a new connection.
func answers(driver, dsn string) func(context.Context) error {
	return func(ctx context.Context) error {
		db, err := sql.Open(driver, dsn)
		if err != nil {
			return err
		}
		return errors.Join(db.PingContext(ctx), db.Close())
	}
}
