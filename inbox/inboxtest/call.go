package inboxtest

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// kind says which faults can happen to a call.
type kind int

const (
	statement kind = iota // of a transaction, or one that only reads
	write                 // committed by itself
	commit
	publish
	answer // to the broker
	external
	callback // of the service, which can panic
	handling // by the handler, likewise
)

// call is something a process does that others can see, or that needs others to answer.
type call struct {
	kind  kind
	owner string // the message it is done for, "work" if none
	what  string // "COMMIT", "UPDATE account", "PUBLISH invoices", "ACK"
	text  string // whole, for the timeline
	sever func() // has the connection break, nil where there is none
	abort func() // has the transaction be as after a statement that failed, nil likewise
	cut   func() // has the transaction be as after a statement whose context ended meanwhile, nil likewise
}

// moves reports whether the call changes what others see.
func (c call) moves() bool { return c.kind != statement && c.kind != callback && c.kind != handling }

// Owners that are no message.
const (
	atWork  = "work"  // of the background
	atStart = "start" // before the router runs: it is not disturbed
)

// point is one occurrence of a call in a play: its first, or second.
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

var (
	blank  = regexp.MustCompile(`\s+`)
	target = regexp.MustCompile(`(?i)\b(?:INTO|UPDATE|FROM|JOIN|TABLE)\s+(?:ONLY\s+|IGNORE\s+)?([\w."` + "`" + `]+)`)
	writes = regexp.MustCompile(`(?i)^\W*(?:WITH\b.*\b(?:INSERT|UPDATE|DELETE|MERGE)\b|INSERT\b|UPDATE\b|DELETE\b|REPLACE\b|MERGE\b|CREATE\b|DROP\b|ALTER\b|TRUNCATE\b)`)
)

// text is what a statement says.
type text struct {
	what   string // its verb and its table
	table  string
	writes bool
}

// texts has each statement that was read once.
var texts sync.Map

func read(query string) *text {
	if known, found := texts.Load(query); found {
		return known.(*text) //nolint:forcetypeassert // nothing else is stored
	}
	shown := strings.TrimSpace(blank.ReplaceAllString(query, " "))
	verb, _, _ := strings.Cut(shown, " ")
	t := &text{what: strings.ToUpper(verb), writes: writes.MatchString(query)}
	if m := target.FindStringSubmatch(shown); m != nil {
		t.table = strings.Trim(m[1], "\"`")
		t.what += " " + t.table
	}
	texts.Store(query, t)
	return t
}

// deliveryKey is under which a message's context carries its delivery.
type deliveryKey struct{}

// delivery is one handing over of a message.
type delivery struct {
	letter *letter
	msg    *message.Message // what is handed over
	try    int
	copied bool // beside the one that is disturbed
}

func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// workKey marks the contexts of [Process.Go].
type workKey struct{}

// frame is one function on the way to a call.
type frame struct{ function, place string }

// callers returns the functions that led to a call, the innermost first.
func callers() []frame {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var all []frame
	for {
		f, more := frames.Next()
		all = append(all, frame{f.Function, fmt.Sprintf("%s:%d", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line)})
		if !more {
			return all
		}
	}
}

const module = "github.com/millrace-go/millrace/"

// What is between a call and whoever makes it, Millrace itself, and what else is not the user's.
var (
	carriers  = []string{"database/sql.", "github.com/jmoiron/sqlx.", module + "inbox/inboxtest.", "runtime.", "sync."}
	millrace  = []string{module + "inbox.", module + "internal/", module + "middleware.", module + "outbox.", module + "pubsub.", module + "policy."}
	libraries = slices.Concat(carriers, millrace, []string{"github.com/ThreeDotsLabs/"})
)

// isMillraces reports whether Millrace makes a call, on whomsoever's behalf.
func isMillraces(stack []frame) bool {
	for _, f := range stack {
		if !begins(f.function, carriers) {
			return begins(f.function, millrace)
		}
	}
	return false
}

// userOf returns the user's own line that led to a call, "" if there is none.
func userOf(stack []frame) string {
	for _, f := range stack {
		if !begins(f.function, libraries) {
			return f.place
		}
	}
	return ""
}

func begins(function string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(function, p) })
}

// passes reports whether a call was made by way of one of the functions.
func passes(stack []frame, prefixes ...string) bool {
	for _, f := range stack {
		if begins(f.function, prefixes) {
			return true
		}
	}
	return false
}
