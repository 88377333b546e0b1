package testdb

import (
	"context"
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

	mu   sync.Mutex
	idle map[uint32]bool // by the server's process
}

// mostKept is how many idle connections to a database are kept.
const mostKept = 8

func newKept(dsn string) (*kept, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	k := &kept{idle: map[uint32]bool{}}
	config.MaxConns = 1000
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		k.leave(conn)
		return true, nil
	}
	config.AfterRelease = func(conn *pgx.Conn) bool { return likeNew(conn) && k.join(conn) }
	config.BeforeClose = k.leave
	k.pool, err = pgxpool.NewWithConfig(context.Background(), config)
	return k, err
}

// join adds a connection to the idle ones, if there is room.
func (k *kept) join(conn *pgx.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.idle) >= mostKept {
		return false
	}
	k.idle[conn.PgConn().PID()] = true
	return true
}

func (k *kept) leave(conn *pgx.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.idle, conn.PgConn().PID())
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

// settled waits for the connections that a test has closed, of which pgxpool tells nobody when it has them back, and returns
// the processes of all that are idle. A test may
// have left some in use.
func (k *kept) settled(ctx context.Context) []int32 {
	if k == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for k.pool.Stat().AcquiredConns() > 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var idle []int32
	for pid := range k.idle {
		idle = append(idle, int32(pid)) //nolint:gosec // it was one
	}
	return idle
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
