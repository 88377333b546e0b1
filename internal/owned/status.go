package owned

import (
	"database/sql/driver"
	"reflect"
	"sync"
)

// Ended reports whether the server has told the driver that the connection has no open transaction,
// though nobody has called Commit or Rollback: some statement ended it. It makes no call. It is
// also false if the driver does not reveal what it was told, and if another transaction was begun.
// MySQL and MariaDB tell with each answer except errors.
func (t *Tx) Ended() bool {
	if t.ctx.Err() != nil { // database/sql is rolling back, and uses the connection until the server answers
		return false
	}
	ended := false
	t.raw(func(c any) error {
		ended = statusOf(c) == idle
		return nil
	})
	return ended
}

// Busy reports whether rows of a query in the transaction are open, or a statement runs. As long, database/sql holds a lock
// for reading, in an unexported field. The connection cannot have another statement then, and some drivers call it bad.
func (t *Tx) Busy() bool {
	f := reflect.ValueOf(t.Tx.Tx).Elem().FieldByName("closemu")
	if !f.IsValid() || f.Type() != reflect.TypeFor[sync.RWMutex]() {
		return false
	}
	inUse := (*sync.RWMutex)(f.Addr().UnsafePointer()) //nolint:gosec // it has the type
	if inUse.TryLock() {
		inUse.Unlock()
		return false
	}
	return true
}

// status is what the server last said of the transaction on a connection.
type status int

const (
	unknown status = iota
	idle
	open
)

// InTx reports whether the server has told the driver that a connection has an open transaction.
func InTx(c any) bool { return statusOf(c) == open }

// statusOf returns the status of a connection. It looks through wrappers.
func statusOf(c any) (s status) {
	layers(c, func(c any) (found bool) {
		s = shown(c)
		return s != unknown
	})
	return s
}

// Wraps reports whether a connection is of the type with this name, or wraps one that is.
func Wraps(c any, name string) (found bool) {
	layers(c, func(c any) bool {
		found = reflect.TypeOf(c).String() == name
		return found
	})
	return found
}

// layers calls look with a connection and with what it wraps, from outside in, until look has found something.
func layers(c any, look func(c any) (found bool)) {
	const deepest = 8
	for range deepest {
		if look(c) {
			return
		}
		if locked, ok := c.(interface {
			WithConn(use func(driver.Conn) error) error
		}); ok {
			_ = locked.WithConn(func(inner driver.Conn) error { // on an error there is nothing to look at
				layers(inner, look)
				return nil
			})
			return
		}
		inner := unwrapped(c)
		if inner == nil {
			return
		}
		c = inner
	}
}

// shown returns the status that a driver reveals. pgxdb and pgx have methods for it; lib/pq and go-sql-driver
// have unexported fields.
func shown(c any) status {
	if c, shows := c.(interface{ TxStatus() byte }); shows { // that of package pgxdb
		return postgresStatus(c.TxStatus())
	}
	v := reflect.ValueOf(c)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return unknown
	}
	switch v.Type().String() {
	case "*stdlib.Conn":
		return shownByPgx(v)
	case "*pq.conn":
		if f := v.Elem().FieldByName("txnStatus"); f.IsValid() && f.CanUint() {
			return postgresStatus(byte(f.Uint()))
		}
	case "*mysql.mysqlConn":
		const inTransaction = 1
		if f := v.Elem().FieldByName("status"); f.IsValid() && f.CanUint() {
			if f.Uint()&inTransaction != 0 {
				return open
			}
			return idle
		}
	}
	return unknown
}

func shownByPgx(v reflect.Value) status {
	if v = returned(v.MethodByName("Conn")); !v.IsValid() {
		return unknown
	}
	if v = returned(v.MethodByName("PgConn")); !v.IsValid() {
		return unknown
	}
	if shows, ok := v.Interface().(interface{ TxStatus() byte }); ok {
		return postgresStatus(shows.TxStatus())
	}
	return unknown
}

// returned calls a method without arguments and returns the value behind its pointer.
func returned(m reflect.Value) reflect.Value {
	if !m.IsValid() || m.Type().NumIn() != 0 || m.Type().NumOut() != 1 || m.Type().Out(0).Kind() != reflect.Pointer {
		return reflect.Value{}
	}
	if v := m.Call(nil)[0]; !v.IsNil() {
		return v
	}
	return reflect.Value{}
}

// postgresStatus decodes the letter in PostgreSQL's ReadyForQuery. A failed transaction is still
// open.
func postgresStatus(letter byte) status {
	switch letter {
	case 'I':
		return idle
	case 'T', 'E':
		return open
	}
	return unknown
}
