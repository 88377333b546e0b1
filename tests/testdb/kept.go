package testdb

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
)

// kept are a process's connections to a database of PostgreSQL's shelf. One that a test closes is the next test's, as
// new: to fork and to warm a process of the server takes longer than what most tests ask of it.
type kept struct {
	pool *pgxpool.Pool

	mu    sync.Mutex
	conns map[uint32]bool // those that may be kept, by the server's process: whether they are idle
	lost  int32           // that tests have left in use
}

// mostKept is how many idle connections to a database are kept.
const mostKept = 8

func newKept(dsn string) (*kept, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	k := &kept{conns: map[uint32]bool{}}
	config.MaxConns = 1000
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		k.set(conn, true) // and it stays idle if who wanted it has given up
		return nil
	}
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		k.set(conn, false)
		return true, nil
	}
	config.AfterRelease = func(conn *pgx.Conn) bool { return likeNew(conn) && k.join(conn) }
	config.BeforeClose = k.leave
	k.pool, err = pgxpool.NewWithConfig(context.Background(), config)
	return k, err
}

func (k *kept) set(conn *pgx.Conn, idle bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns[conn.PgConn().PID()] = idle
}

// join adds a connection to the idle ones, if there is room and no other test has the database since it was lent.
func (k *kept) join(conn *pgx.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	pid := conn.PgConn().PID()
	_, known := k.conns[pid]
	if !known || len(k.idle()) >= mostKept {
		return false
	}
	k.conns[pid] = true
	return true
}

func (k *kept) leave(conn *pgx.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, conn.PgConn().PID())
}

func (k *kept) idle() []int32 {
	var idle []int32
	for pid, is := range k.conns {
		if is {
			idle = append(idle, int32(pid)) //nolint:gosec // it was one
		}
	}
	return idle
}

// likeNew makes a session that listens to nothing like a new one.
func likeNew(conn *pgx.Conn) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var listens bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_listening_channels())").Scan(&listens)
	if err != nil || listens { // what it has heard would be told to the next test
		return false
	}
	if err := conn.DeallocateAll(ctx); err != nil {
		return false
	}
	_, err = conn.Exec(ctx, "DISCARD ALL")
	return err == nil
}

// open returns a pool on them. Without them, it makes new ones.
func (k *kept) open(driver, dsn string) (*sqlx.DB, error) {
	if k == nil {
		return sqlx.Open(driver, dsn)
	}
	return sqlx.NewDb(stdlib.OpenDBFromPool(k.pool), driver), nil
}

// settled waits for the connections that a test has closed, of which pgxpool tells nobody when it has them back, and for
// those that are being made. It returns the processes of all that are idle. What a test has left in use is not kept.
func (k *kept) settled(ctx context.Context) []int32 {
	if k == nil {
		return nil
	}
	wait(ctx, 30*time.Second, func() bool { return k.pool.Stat().ConstructingConns() == 0 })
	wait(ctx, time.Second, func() bool { return k.pool.Stat().AcquiredConns() <= k.lost }) // one test at a time has the database
	k.lost = k.pool.Stat().AcquiredConns()
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.conns, func(_ uint32, idle bool) bool { return !idle })
	return k.idle()
}

func wait(ctx context.Context, atMost time.Duration, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for !done() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

// forget closes those that are idle.
func (k *kept) forget() {
	if k != nil {
		k.pool.Reset()
	}
}

// keepsPostgres reports whether a server has room for the connections that several processes keep.
func keepsPostgres(ctx context.Context, conn *sqlx.Conn) (keeps bool, err error) {
	if others["postgres"] != "" {
		return false, nil
	}
	err = conn.GetContext(ctx, &keeps, "SELECT current_setting('max_connections')::int >= 1000")
	return keeps, err
}
