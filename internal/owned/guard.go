package owned

import (
	"database/sql/driver"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"
)

// ErrNoHook says that a SQLite driver cannot prevent commits.
var ErrNoHook = errors.New("the driver of SQLite has no commit hook, so what a handler writes after the database rolled " +
	"its transaction back would stay: use modernc.org/sqlite or mattn/go-sqlite3, and where something wraps the driver's " +
	"connection, give the wrapper a method Raw() driver.Conn")

// guard decides what may be committed on a SQLite connection. SQLite calls it before each commit,
// even of a single statement outside a transaction, and after each rollback.
type guard struct {
	state   atomic.Int32
	lost    atomic.Bool
	refused atomic.Bool
	asked   atomic.Bool // SQLite called the hook at the owner's COMMIT
	missed  atomic.Bool // it did not: another hook may have replaced ours
}

const (
	anyone  int32 = iota // no transaction of ours
	nobody               // our transaction, which must not be committed yet
	owner                // the owner's COMMIT
	closing              // the owner's end without a COMMIT
)

func (g *guard) shut() {
	g.lost.Store(false)
	g.refused.Store(false)
	g.asked.Store(false)
	g.state.Store(nobody)
}

// open allows the next commit, unless the transaction was lost.
func (g *guard) open() bool {
	g.state.Store(owner)
	return !g.lost.Load()
}

func (g *guard) close() { g.state.Store(closing) }
func (g *guard) idle()  { g.state.Store(anyone) }

// refuses answers SQLite before a commit: true prevents it.
func (g *guard) refuses() bool {
	switch state := g.state.Load(); {
	case state == anyone:
		return false
	case state == owner && !g.lost.Load():
		g.asked.Store(true)
		return false
	}
	g.refused.Store(true)
	return true
}

// rolledBack is called after each rollback.
func (g *guard) rolledBack() {
	if state := g.state.Load(); state == nobody || state == owner {
		g.lost.Store(true)
	}
}

// hooked holds the hooks of a connection.
type hooked struct {
	guard            *guard
	commit, rollback reflect.Value // with the driver's types
}

// connections holds the hooks of each connection for as long as it lives: mattn/go-sqlite3 keeps
// every function that was ever registered until the connection is closed.
var connections sync.Map // weak.Pointer[byte] to *hooked

// guardOf returns the guard of a driver's connection, and registers its hooks first. It looks
// through wrappers of the connection.
func guardOf(c any) (*guard, error) {
	const deepest = 8
	for range deepest {
		v := reflect.ValueOf(c)
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			if g := registered(v); g != nil {
				return g, nil
			}
		}
		if locked, ok := c.(interface {
			WithConn(use func(driver.Conn) error) error
		}); ok {
			var g *guard
			err := locked.WithConn(func(inner driver.Conn) (err error) {
				g, err = guardOf(inner)
				return err
			})
			return g, err
		}
		inner := unwrapped(c)
		if inner == nil {
			break
		}
		c = inner
	}
	return nil, ErrNoHook
}

// registered returns the guard of a connection, nil if the driver has no hooks.
func registered(v reflect.Value) *guard {
	self := (*byte)(v.UnsafePointer()) //nolint:gosec // only its identity is used
	key := weak.Make(self)
	if known, ok := connections.Load(key); ok {
		h := known.(*hooked)
		if h.guard.missed.Swap(false) && !remembersAll(v) {
			h.register(v)
		}
		return h.guard
	}
	if !takes(v.MethodByName(onCommit), 1) || !takes(v.MethodByName(onRollback), 0) {
		return nil
	}
	h := newHooked(v)
	h.register(v)
	connections.Store(key, h)
	runtime.AddCleanup(self, func(key weak.Pointer[byte]) { connections.Delete(key) }, key)
	return h.guard
}

// remembersAll reports whether the driver keeps replaced functions, as mattn/go-sqlite3 does.
func remembersAll(v reflect.Value) bool {
	return v.MethodByName(onCommit).Type().In(0).Out(0).Kind() == reflect.Int
}

const (
	onCommit   = "RegisterCommitHook"
	onRollback = "RegisterRollbackHook"
)

// newHooked makes functions of the driver's types: modernc.org/sqlite declares named types that
// return int32, mattn/go-sqlite3 functions that return int.
func newHooked(v reflect.Value) *hooked {
	h := &hooked{guard: &guard{}}
	commit := v.MethodByName(onCommit).Type().In(0)
	answers := [2]reflect.Value{reflect.New(commit.Out(0)).Elem(), reflect.New(commit.Out(0)).Elem()}
	answers[1].SetInt(1)
	h.commit = reflect.MakeFunc(commit, func([]reflect.Value) []reflect.Value {
		if h.guard.refuses() {
			return answers[1:]
		}
		return answers[:1]
	})
	rollback := v.MethodByName(onRollback).Type().In(0)
	h.rollback = reflect.MakeFunc(rollback, func([]reflect.Value) []reflect.Value {
		h.guard.rolledBack()
		return nil
	})
	return h
}

func (h *hooked) register(v reflect.Value) {
	v.MethodByName(onCommit).Call([]reflect.Value{h.commit})
	v.MethodByName(onRollback).Call([]reflect.Value{h.rollback})
}

// takes reports whether m is a method whose argument is a function without arguments and with so
// many integer results.
func takes(m reflect.Value, results int) bool {
	if !m.IsValid() || m.Type().NumIn() != 1 || m.Type().NumOut() != 0 {
		return false
	}
	f := m.Type().In(0)
	return f.Kind() == reflect.Func && f.NumIn() == 0 && f.NumOut() == results &&
		(results == 0 || reflect.Zero(f.Out(0)).CanInt())
}

// unwrapped returns the connection that c wraps, from a method or from the field that it embeds.
func unwrapped(c any) driver.Conn {
	switch c := c.(type) {
	case interface{ Raw() driver.Conn }:
		return c.Raw()
	case interface{ WrappedConn() driver.Conn }:
		return c.WrappedConn()
	case interface{ Unwrap() driver.Conn }:
		return c.Unwrap()
	}
	v := reflect.ValueOf(c)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	field := v.FieldByName("Conn")
	if !field.IsValid() || !field.CanInterface() {
		return nil
	}
	inner, _ := field.Interface().(driver.Conn) //nolint:errcheck // nil says that there is none
	return inner
}
