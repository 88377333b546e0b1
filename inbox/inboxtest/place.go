package inboxtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
)

// place is a database, as Prepare left it, for one play at a time.
type place struct {
	scenario  *Scenario
	connector driver.Connector
	driver    string
	plain     *sqlx.DB // without faults

	store       *inbox.Store // to read with; nil if the scenario does not use Millrace
	countOutbox string
	tables      []string // of Millrace

	kept          *keptTables // a copy of what Prepare made, on a server
	dialect       string      // that of the database
	abortsOnError bool        // after an error a transaction refuses all statements

	survivesInterrupts bool // a connection stays open after a statement was interrupted
}

// open opens a pool without faults.
func (p *place) open(db Database) error {
	var err error
	if p.connector, err = db.connector(); err != nil {
		return fmt.Errorf("open %s: %w", db.Driver, err)
	}
	p.driver = db.Driver
	p.plain = sqlx.NewDb(sql.OpenDB(p.connector), db.Driver)
	p.plain.SetMaxOpenConns(2)
	return nil
}

// prepare runs Prepare and checks whether Millrace's tables exist.
func (p *place) prepare(ctx context.Context) error {
	if p.scenario.Prepare != nil {
		if err := p.scenario.Prepare(ctx, p.plain); err != nil {
			return fmt.Errorf("prepare the database: %w", err)
		}
	}
	return p.look(ctx)
}

func (p *place) look(ctx context.Context) error {
	d, err := dialect.Of(p.plain, "", dialect.Names{Prefix: p.scenario.TablePrefix})
	if err != nil {
		return err
	}
	p.countOutbox = d.Outbox.CountBacklog
	p.tables = nil
	for _, t := range d.Tables() {
		p.tables = append(p.tables, t.Name)
	}
	p.dialect = d.Name
	p.abortsOnError = d.Name == dialect.PostgresName
	p.survivesInterrupts = d.Name == dialect.SQLiteName
	store, err := inbox.NewStore(p.plain, inbox.Config{
		TablePrefix: p.scenario.TablePrefix, Namespace: p.scenario.Namespace, Logger: watermill.NopLogger{},
	})
	if err != nil {
		return err
	}
	if _, err := admin.New(store).Backlog(ctx, admin.BacklogOptions{}); err == nil {
		p.store = store
	}
	return nil
}

// template returns a SQLite file that Prepare has set up; each play gets a copy.
func template(s *Scenario, dir string) (file, driverName string, err error) {
	driverName = sqliteDriver()
	if driverName == "" {
		return "", "", errors.New("there is no SQLite driver: import modernc.org/sqlite or github.com/mattn/go-sqlite3 in the test, or set Scenario.Databases")
	}
	file = filepath.Join(dir, "template.db")
	p := &place{scenario: s}
	if err := p.open(sqliteAt(driverName, file)); err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return file, driverName, errors.Join(p.prepare(ctx), p.plain.Close())
}

func sqliteDriver() string {
	for _, name := range []string{"sqlite", "sqlite3"} {
		if slices.Contains(sql.Drivers(), name) {
			return name
		}
	}
	return ""
}

func sqliteAt(driverName, file string) Database {
	settings := "?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate"
	if driverName == "sqlite3" {
		settings = "?_busy_timeout=20000&_journal_mode=WAL&_synchronous=OFF&_txlock=immediate"
	}
	path := url.URL{Path: file} // t.TempDir contains a # if two subtests have the same name
	return Database{Driver: driverName, DSN: "file:" + path.EscapedPath() + settings}
}

// sqlitePlace returns a place for one play.
func sqlitePlace(s *Scenario, template, driverName, dir string) (*place, func(), error) {
	at, err := os.MkdirTemp(dir, "play")
	if err != nil {
		return nil, nil, err
	}
	file := filepath.Join(at, "play.db")
	if err := copyFile(file, template); err != nil {
		return nil, nil, err
	}
	p := &place{scenario: s}
	if err := p.open(sqliteAt(driverName, file)); err != nil {
		return nil, nil, err
	}
	return p, func() { _ = errors.Join(p.plain.Close(), os.RemoveAll(at)) }, p.look(context.Background())
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read from
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// serverPlace returns a place on a server, if the database may be emptied.
func serverPlace(ctx context.Context, s *Scenario, db Database) (*place, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := &place{scenario: s}
	if err := p.open(db); err != nil {
		return nil, err
	}
	if err := p.permit(ctx, db); err != nil {
		return nil, errors.Join(err, p.plain.Close())
	}
	return p, nil
}

// renew resets the database to the state that Prepare left.
func (p *place) renew(ctx context.Context) error {
	if p.kept != nil {
		for range 2 {
			if p.kept.restore(ctx, p.plain) == nil {
				return nil
			}
			slices.Reverse(p.kept.tables) // foreign keys may want the other order
		}
	}
	d, err := dialect.Of(p.plain, "", dialect.Names{Prefix: p.scenario.TablePrefix})
	if err != nil {
		return err
	}
	if err := dropTables(ctx, d, p.plain); err != nil {
		return fmt.Errorf("empty the database: %w", err)
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	p.kept, err = keepTables(ctx, d, p.plain)
	return err
}

// expire makes every inbox forget its handled messages, as its janitor does after the retention. That of inbox.Forever is stored
// as 0.
func (p *place) expire() error { return p.forget(` WHERE retention > 0`) }

// forget makes the inboxes that the condition selects forget their handled messages.
func (p *place) forget(which string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	consumers := p.scenario.TablePrefix + "consumers"
	var namespaces []string
	if err := p.plain.SelectContext(ctx, &namespaces, `SELECT DISTINCT namespace FROM `+consumers); err != nil {
		return fmt.Errorf("read the consumers: %w", err)
	}
	if _, err := p.plain.ExecContext(ctx, `UPDATE `+consumers+` SET retention = 1`+which); err != nil {
		return fmt.Errorf("end the retention: %w", err)
	}
	time.Sleep(aMoment) // Purge keeps claims of the last microsecond
	for _, namespace := range namespaces {
		store, err := inbox.NewStore(p.plain, inbox.Config{
			TablePrefix: p.scenario.TablePrefix, Namespace: namespace, Logger: watermill.NopLogger{},
		})
		if err == nil {
			_, err = store.Purge(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const aMoment = 5 * time.Millisecond
