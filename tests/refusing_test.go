package tests_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const (
	watched      = 500 * time.Millisecond // in which a storm would show
	mostHeldBack = 40                     // deliveries meanwhile, of four at a time
)

// A server that answers, and does not serve, is as good as down: deliveries are held back, so that a
// broker's delivery limit is not used up in a moment.
func TestAServerThatLetsNobodyIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dialect, how string
		begin, end   string // what the administrator %[3]s does to the user %[1]s or the database %[2]s
	}{
		{"postgres", "no login", `ALTER ROLE %[1]s NOLOGIN`, `ALTER ROLE %[1]s LOGIN`},
		{"postgres", "no connections", `ALTER DATABASE %[2]s ALLOW_CONNECTIONS false`, `ALTER DATABASE %[2]s ALLOW_CONNECTIONS true`},
		{"postgres", "no database", `ALTER DATABASE %[2]s RENAME TO %[2]s_away`, `ALTER DATABASE %[2]s_away RENAME TO %[2]s`},
		{"postgres", "no privilege", `REVOKE %[3]s FROM %[1]s`, `GRANT %[3]s TO %[1]s`},
		{"mysql", "another password", `ALTER USER %[1]s IDENTIFIED BY 'another'`, `ALTER USER %[1]s IDENTIFIED BY 'secret'`},
		{"mysql", "no privilege", `REVOKE ALL ON %[2]s.* FROM %[1]s`, `GRANT ALL ON %[2]s.* TO %[1]s`},
	} {
		t.Run(c.dialect+"/"+c.how, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, c.dialect))
			admin := testdb.On(t, c.dialect, testdb.Empty()) // another database
			l := login(t, admin, b.db)
			h := b.inbox(effect, on(b.newStore(l.pool, inbox.Config{})))
			must(t, h, newMessage("x"))
			l.pool.SetMaxIdleConns(0) // each transaction logs in
			b.db.Disconnect()         // a database in use cannot be renamed

			rig.Eventually(b, "nobody uses it any more", func() bool {
				_, err := admin.ExecContext(t.Context(), fmt.Sprintf(c.begin, l.user, l.database, l.admin))
				return err == nil
			})
			load := newLoad(h, 4)
			defer load.stop()
			<-time.After(watched)
			delivered := load.deliveries.Load()
			admin.Do(t, fmt.Sprintf(c.end, l.user, l.database, l.admin))
			rig.Eventually(b, "the load flows again", func() bool { return load.acked.Load() > 0 })
			load.stop()
			assert.Less(t, delivered, int64(mostHeldBack), "a storm")
			assert.Empty(t, load.others(), "errors that are not inbox.ErrUnavailable")
		})
	}
}

// account is a user of a database who is not its administrator.
type account struct {
	user, database, admin string
	pool                  *sqlx.DB
}

func login(t *testing.T, admin, db *testdb.DB) (l account) {
	t.Helper()
	var dsn, create string
	switch db.Dialect {
	case "postgres":
		u, err := url.Parse(db.DSN)
		require.NoError(t, err)
		l.admin, l.database = u.User.Username(), strings.TrimPrefix(u.Path, "/")
		l.user = l.database + "_user"
		u.User = url.UserPassword(l.user, "secret")
		dsn, create = u.String(), `CREATE ROLE `+l.user+` LOGIN PASSWORD 'secret' IN ROLE `+l.admin
	case "mysql":
		c, err := mysql.ParseDSN(db.DSN)
		require.NoError(t, err)
		l.database = c.DBName
		l.user = "u" + c.DBName[len(c.DBName)-10:]
		c.User, c.Passwd = l.user, "secret"
		admin.Do(t, `CREATE USER `+l.user+` IDENTIFIED BY 'secret'`)
		dsn, create = c.FormatDSN(), `GRANT ALL ON `+c.DBName+`.* TO `+l.user
	}
	admin.Do(t, create)
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.WithoutCancel(t.Context()), `DROP USER `+l.user)
		assert.NoError(t, err)
	})
	pool, err := sqlx.Open(db.Driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	l.pool = pool
	return l
}

// full is a pool on which the database has no room beyond most, a pragma.
func full(t *testing.T, db *testdb.DB, most string) *testdb.DB {
	t.Helper()
	if db.Driver == "sqlite3" { // whose DSN does not have it
		pool := db.Open(t, testdb.Pool(1))
		pool.Do(t, `PRAGMA `+most)
		return pool
	}
	return db.Open(t, testdb.Params("_pragma", most))
}

// The claim of a message may find room where what its handler writes does not.
func TestADatabaseThatIsFull(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	b := newBed(t, db)
	most := fmt.Sprintf("max_page_count(%d)", b.count(`SELECT page_count + 50 FROM pragma_page_count()`))
	var size atomic.Int64
	size.Store(1_000_000)
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		return nil, rig.Exec(msg.Context(), `INSERT INTO effects (uuid) VALUES (zeroblob(?))`, size.Load())
	}, on(b.newStore(full(t, db, most).DB, inbox.Config{})))
	load := newLoad(h, 1) // whose pause is short yet
	defer load.stop()
	<-time.After(watched)
	assert.Less(t, load.nacked.Load(), int64(mostHeldBack), "a storm")
	rig.Eventually(t, "it is nacked", func() bool { return load.nacked.Load() > 0 }) // on a busy machine later
	size.Store(1)
}

// A statement of the handler's may fail with what a server says that does not serve: the other messages go on.
func TestAHandlerThatFailsAsADatabaseDoes(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "postgres"))
	b.exec(`CREATE SEQUENCE numbers`)
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "wrong" {
			return nil, rig.Exec(msg.Context(), `SELECT currval('numbers')`) // before nextval: 55000
		}
		return effect(msg)
	})
	wrong := newMessage("wrong")
	for range 20 {
		err := rig.Failure(t, h, again(wrong), "55000")
		require.NotErrorIs(t, err, inbox.ErrUnavailable)
		must(t, h, newMessage("x"))
	}
	assert.Zero(t, b.events.Count("outage"))
	assert.Equal(t, 20, b.effects())
}
