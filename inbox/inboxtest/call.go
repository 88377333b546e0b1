package inboxtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// kind determines which faults can happen at a call.
type kind int

const (
	statement kind = iota // of a transaction, or one that only reads
	write                 // committed by itself
	commit
	publish
	answer // to the broker
	external
	callback // of the service; it can panic
	handling // a run of the handler; it can panic
)

// call is a call of a process to the outside: one whose effect others see, or one that needs an answer.
type call struct {
	kind  kind
	owner string // the delivery it is made for; "work" if none
	what  string // "COMMIT", "UPDATE account", "PUBLISH invoices", "ACK"
	text  string // in full
	sever func() // breaks the connection; nil if there is none
	abort func() // simulates a failed statement for the transaction; nil if there is none
	cut   func() // simulates a statement whose context ended for the transaction; nil if there is none
}

// moves reports whether the call has an effect that others see.
func (c call) moves() bool { return c.kind != statement && c.kind != callback && c.kind != handling }

// Owners that are not messages.
const (
	atWork  = "work"  // background work
	atStart = "start" // before the router runs: no faults
)

// Suffixes of owners that are deliveries beside that of the broker.
const (
	asCopy   = "copy"   // to the other process, see copyTo
	asStored = "stored" // by a queue of Millrace, which has stored the message
)

// point is the n-th occurrence of a call in a play.
type point struct {
	owner string
	what  string
	nth   int
}

func (p point) String() string {
	if p.nth == 1 {
		return p.owner + " " + p.what
	}
	return fmt.Sprintf("%s %s #%d", p.owner, p.what, p.nth)
}

// deliveryKey is the key of a delivery in its message's context.
type deliveryKey struct{}

// delivery hands a message to a process, once.
type delivery struct {
	letter *letter
	msg    *message.Message // the copy that is handed out
	try    int
	copied bool // to the other process, see copyTo
}

func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// sourceOf returns the delivery for which a call is made: a *delivery of the broker, the *stored.Message of a queue of
// Millrace, or nil.
func sourceOf(ctx context.Context) any {
	if d := deliveryOf(ctx); d != nil {
		return d
	}
	if row := (inbox.Internals{}).Leased(ctx); row != nil {
		return row
	}
	return nil
}

// workKey marks the contexts of [Process.Go].
type workKey struct{}

// frame is one function in the stack of a call.
type frame struct {
	function, file string
	line           int
}

// place is the frame's line as go test and editors find it: from the folder of the test.
func (f frame) place() string {
	file := f.file
	if near, err := filepath.Rel(folder(), file); err == nil && len(near) < len(file) {
		file = near
	}
	return fmt.Sprintf("%s:%d", file, f.line)
}

// folder is where go test runs a package's tests. A test may change the working directory later.
var folder = sync.OnceValue(func() string {
	dir, _ := os.Getwd() // without it, places are absolute
	return dir
})

// callers returns the stack of a call, the innermost function first.
func callers() []frame {
	pcs := make([]uintptr, 64)
	n := runtime.Callers(3, pcs)
	for n == len(pcs) { // a deep stack; its outermost functions tell whose call it is
		pcs = make([]uintptr, 2*n)
		n = runtime.Callers(3, pcs)
	}
	frames := runtime.CallersFrames(pcs[:n])
	var all []frame
	for {
		f, more := frames.Next()
		all = append(all, frame{f.Function, f.File, f.Line})
		if !more {
			return all
		}
	}
}

const module = "github.com/millrace-go/millrace/"

// Prefixes of functions: those between a call and its caller, those of Millrace, and all that are not the user's.
var (
	carriers = []string{
		"database/sql.", "github.com/jmoiron/sqlx.", "github.com/jackc/pgx/", module + "pgxdb.", module + "mysqldb.",
		module + "inbox/inboxtest.", "runtime.", "sync.",
	}
	millrace  = []string{module + "inbox.", module + "internal/", module + "middleware.", module + "outbox.", module + "pubsub.", module + "policy."}
	libraries = slices.Concat(carriers, millrace, []string{"github.com/ThreeDotsLabs/"})
)

// isMillraces reports whether Millrace makes the call, on anybody's behalf.
func isMillraces(stack []frame) bool {
	for _, f := range stack {
		if !begins(f.function, carriers) {
			return begins(f.function, millrace)
		}
	}
	return false
}

// userOf returns the user's own line that led to a call, or "" if there is none.
func userOf(stack []frame) string {
	for _, f := range stack {
		if !begins(f.function, libraries) {
			return f.place()
		}
	}
	return ""
}

func begins(function string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(function, p) })
}

// passes reports whether one of the functions is in the stack.
func passes(stack []frame, prefixes ...string) bool {
	for _, f := range stack {
		if begins(f.function, prefixes) {
			return true
		}
	}
	return false
}
