package testdb

import (
	"fmt"
	"time"
)

// Option changes how a database is made, or a pool opened.
type Option func(*settings)

type settings struct {
	pool   int
	via    string
	params [][2]string
	frozen *frozen
	empty  bool

	flavour flavour // the server's
}

// usual reports whether connections are made as usual.
func (s settings) usual() bool { return s.via == "" && s.frozen == nil && len(s.params) == 0 }

type frozen struct{ idle, lock time.Duration }

// Pool sets the greatest number of connections, open and idle. It is 10 otherwise.
func Pool(n int) Option {
	return func(s *settings) { s.pool = n }
}

// Empty gives a database that lacks the tables of Millrace.
func Empty() Option {
	return func(s *settings) { s.empty = true }
}

// Params adds DSN parameters, given as name, value, name, value. They mean what
// the driver says: Params("clientFoundRows", "true").
func Params(pairs ...string) Option {
	if len(pairs)%2 != 0 {
		panic(fmt.Sprintf("testdb: Params wants pairs, got %q", pairs))
	}
	return func(s *settings) {
		for i := 0; i < len(pairs); i += 2 {
			s.params = append(s.params, [2]string{pairs[i], pairs[i+1]})
		}
	}
}

// Via connects through addr (host:port): a proxy or a pooler before the same
// server. SQLite ignores it.
func Via(addr string) Option {
	return func(s *settings) { s.via = addr }
}

// FrozenHosts adds the documented settings by which a server takes the locks
// from a client that froze or vanished: idle bounds the silence inside a
// transaction, lock the wait for a row. MariaDB counts whole seconds, rounded up
// here. SQLite has no such clients and ignores it.
func FrozenHosts(idle, lock time.Duration) Option {
	return func(s *settings) { s.frozen = &frozen{idle: idle, lock: lock} }
}
