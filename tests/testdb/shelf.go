package testdb

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
)

// patience bounds what a server is asked to do for a test. Even a busy machine does not reach it.
const patience = 10 * time.Minute

// shelf is a server's databases that have the tables of Millrace. One goes back to it when its
// test ends, and is emptied before the next test takes it, in this process or another: to make
// one takes ten times as long. One in which a test changed more than rows and tables is made anew.
type shelf struct {
	*server

	dialect, driver, admin string

	prefix string // of the databases' names: those of another schema have another

	mu    sync.Mutex
	locks *sqlx.Conn // holds a lock on the name of each database that is taken or has kept connections, for other processes
	taken map[string]bool
	keeps bool // connections
	kept  map[string]*kept
	shape string // of a new database
}

// shelves are those of the servers that this process knows, by the administrator's DSN.
var shelves sync.Map

func shelfOf(s *system, admin string) *shelf {
	sum := sha256.Sum256([]byte(schema(s.dialect).Schema()))
	empty := &shelf{
		server: s.server, dialect: s.dialect, driver: s.driver, admin: admin,
		prefix: fmt.Sprintf("millrace_shelf_test_%x_", sum[:4]), taken: map[string]bool{}, kept: map[string]*kept{},
	}
	known, _ := shelves.LoadOrStore(admin, empty)
	return known.(*shelf) //nolint:forcetypeassert // nothing else is stored
}

// take returns the DSN of a database that is like new, and is t's until t ends, and its connections if they are kept.
func (s *shelf) take(t testing.TB) (dsn string, k *kept) {
	t.Helper()
	name, k, err := s.reserve(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { s.giveBack(t, name) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.renew(ctx, name, k); err != nil {
		t.Logf("testdb: %s is made anew: %v", name, err)
		require.NoError(t, s.remake(ctx, name, k))
	}
	dsn, err = s.named(s.admin, name)
	require.NoError(t, err)
	return dsn, k
}

// reserve finds a name that nobody has taken. A database of that name may be there.
func (s *shelf) reserve(ctx context.Context) (name string, k *kept, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return "", nil, err
	}
	for i := 1; ; i++ {
		name := fmt.Sprint(s.prefix, i)
		if s.taken[name] {
			continue
		}
		free := s.kept[name] != nil
		if !free {
			if err := s.locks.QueryRowContext(ctx, s.tryLock, name).Scan(&free); err != nil {
				return "", nil, fmt.Errorf("lock %s: %w", name, err)
			}
		}
		if free {
			k, err := s.keep(name) //nolint:contextcheck // they outlive it
			if err == nil {
				s.taken[name] = true
			}
			return name, k, err
		}
	}
}

// keep returns the connections to a database, if they are kept.
func (s *shelf) keep(name string) (*kept, error) {
	if !s.keeps || s.kept[name] != nil {
		return s.kept[name], nil
	}
	dsn, err := s.named(s.admin, name)
	if err != nil {
		return nil, err
	}
	s.kept[name], err = newKept(dsn)
	return s.kept[name], err
}

func (s *shelf) giveBack(t testing.TB, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, name)
	if s.kept[name] != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if _, err := s.locks.ExecContext(ctx, s.unlock, name); err != nil {
		t.Logf("testdb: give %s back: %v", name, err)
	}
}

// open connects, and finds out how a new database looks: like the model, which no test takes.
func (s *shelf) open(ctx context.Context) error {
	if s.locks != nil {
		return nil
	}
	pool, err := sqlx.Open(s.driver, s.admin)
	if err != nil {
		return err
	}
	locks, err := pool.Connx(ctx)
	if err != nil {
		return err
	}
	if s.keeps, err = s.server.keeps(ctx, locks); err != nil {
		return err
	}
	model := s.prefix + "model"
	var locked bool
	if err := locks.QueryRowContext(ctx, s.lock, model).Scan(&locked); err != nil || !locked {
		return fmt.Errorf("lock %s: %w", model, cmp.Or(err, errors.New("another process has it for too long")))
	}
	if s.shape, err = s.look(ctx, model); err != nil {
		if err := errors.Join(s.sweep(ctx, locks), s.remake(ctx, model, nil)); err != nil {
			return err
		}
		if s.shape, err = s.look(ctx, model); err != nil {
			return err
		}
	}
	if _, err := locks.ExecContext(ctx, s.unlock, model); err != nil {
		return fmt.Errorf("unlock %s: %w", model, err)
	}
	s.locks = locks
	return nil
}

// sweep drops what nobody has taken of other schemas.
func (s *shelf) sweep(ctx context.Context, locks *sqlx.Conn) error {
	var all []string
	if err := locks.SelectContext(ctx, &all, s.list, `millrace\_shelf\_test\_%`); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(name string) bool { return strings.HasPrefix(name, s.prefix) })
	for _, name := range all {
		var free bool
		if err := locks.QueryRowContext(ctx, s.tryLock, name).Scan(&free); err != nil || !free {
			continue
		}
		if err := execute(ctx, s.driver, s.admin, s.drop(name)...); err != nil {
			return err
		}
		if _, err := locks.ExecContext(ctx, s.unlock, name); err != nil {
			return err
		}
	}
	return nil
}

// look returns the shape of a database that has all of the tables.
func (s *shelf) look(ctx context.Context, name string) (shape string, err error) {
	err = s.inside(name, nil, func(db *sqlx.DB) error {
		var version int
		if err := db.GetContext(ctx, &version, schema(s.dialect).SelectVersion); err != nil {
			return err
		}
		if want := schema(s.dialect).Version(); version != want {
			return fmt.Errorf("its schema is %d, not %d", version, want)
		}
		shape, err = s.server.shape(ctx, db)
		return err
	})
	return shape, err
}

// renew empties a database. Its error says why it is not like new.
func (s *shelf) renew(ctx context.Context, name string, k *kept) error {
	idle := k.settled(ctx)
	return s.inside(name, k, func(db *sqlx.DB) error {
		shape, err := s.server.renew(ctx, db, idle)
		if err == nil && shape != s.shape {
			err = errors.New("a test has changed it")
		}
		return err
	})
}

func (s *shelf) remake(ctx context.Context, name string, k *kept) error {
	k.forget()
	if err := execute(ctx, s.driver, s.admin, append(s.drop(name), s.create(name))...); err != nil {
		return err
	}
	return s.inside(name, k, func(db *sqlx.DB) error { return schema(s.dialect).Migrate(ctx, db) })
}

// inside lends a connection to a database.
func (s *shelf) inside(name string, k *kept, do func(*sqlx.DB) error) error {
	dsn, err := s.named(s.admin, name)
	if err != nil {
		return err
	}
	db, err := k.open(s.driver, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	return do(db)
}
