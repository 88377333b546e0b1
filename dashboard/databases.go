package dashboard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// Databases serves the dashboards of a service that has several databases. The pages of a database
// are below its name; the first page has the figures of all. A database that does not answer says so
// there and delays no other.
type Databases struct {
	names    []string // sorted
	handlers map[string]*Handler
}

// NewDatabases returns Databases for handlers by the names of their databases. Names consist of
// letters, digits, "-" and "_". Config.Prefix of the handlers is not used: serve Databases at a
// pattern of http.ServeMux, or behind http.StripPrefix.
func NewDatabases(handlers map[string]*Handler) (*Databases, error) {
	d := &Databases{slices.Sorted(maps.Keys(handlers)), maps.Clone(handlers)}
	var problems []error
	if len(d.names) == 0 {
		problems = append(problems, errors.New("there is none"))
	}
	for _, name := range d.names {
		if !nameOfDatabase.MatchString(name) {
			problems = append(problems, fmt.Errorf("the name %q is not made of letters, digits, - and _", name))
		}
		if handlers[name] == nil {
			problems = append(problems, fmt.Errorf("%s has no Handler", name))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("dashboard: invalid databases: %w", err)
	}
	return d, nil
}

var nameOfDatabase = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Run runs [Handler.Run] of each database until ctx ends.
func (d *Databases) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, h := range d.handlers {
		running.Go(func() { _ = h.Run(ctx) }) // it ends with ctx and returns no error
	}
	running.Wait()
	return nil
}

// ServeHTTP implements http.Handler.
func (d *Databases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	local, found := localPath(r, prefixOf(r))
	if !found {
		protect(w.Header())
		redirectInside(w, r)
		return
	}
	name, page, below := strings.Cut(local, "/")
	h := d.handlers[name]
	switch {
	case h != nil && below:
		h.serve(w, r, page, name)
	case h != nil:
		protect(w.Header())
		redirectInside(w, r)
	default:
		d.serveFirst(w, r, local)
	}
}

// system returns what the databases have in common.
func (d *Databases) system() system {
	all := d.handlers[d.names[0]].config.system()
	all.Place = ""
	for _, h := range d.handlers {
		if h.config.Title != all.Title {
			all.Title = ""
		}
		if h.config.Color != all.Color {
			all.Color = ""
		}
	}
	return all
}

// databaseLine is a database in the table of the first page.
type databaseLine struct {
	Name    string
	Problem string // why there are no figures
	overview
}

// serveFirst serves the first page and the files that it loads, or says that there is no such page.
func (d *Databases) serveFirst(w http.ResponseWriter, r *http.Request, local string) {
	protect(w.Header())
	first := d.handlers[d.names[0]] // who is signed in, and where to log, is the same for all
	v := first.visit(r, local)
	v.All, v.Tab, v.System = true, "databases", d.system()
	if a, ok := assets[local]; ok {
		a.serve(w, r)
		return
	}
	switch {
	case local != "":
		first.fail(w, v, problem{http.StatusNotFound, "There is no such page, and no database of this name."})
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		first.fail(w, v, problem{http.StatusMethodNotAllowed, "This method is not allowed here."})
	default:
		v.Title, v.Data = "Databases", d.lines(r.Context())
		first.render(w, v, "databases.html", http.StatusOK)
	}
}

// lines asks all databases at once.
func (d *Databases) lines(ctx context.Context) []databaseLine {
	const patience = 3 * time.Second // a page about all must not wait for one that is down
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asked := make(chan databaseLine, len(d.names))
	all := make([]databaseLine, 0, len(d.names))
	for _, name := range d.names {
		all = append(all, databaseLine{Name: name, Problem: problemOf(context.DeadlineExceeded).text}) // unless it answers
		go func() { asked <- lineOf(ctx, name, d.handlers[name]) }()
	}
	for range all {
		select {
		case l := <-asked:
			all[slices.Index(d.names, l.Name)] = l
		case <-ctx.Done(): // a driver such as lib/pq does not heed it
			return all
		}
	}
	return all
}

func lineOf(ctx context.Context, name string, h *Handler) databaseLine {
	l := databaseLine{Name: name}
	if err := contained(func() error { return l.ask(ctx, h) }); err != nil {
		l.Problem = problemOf(err).text
	}
	return l
}

func (l *databaseLine) ask(ctx context.Context, h *Handler) error {
	taken, err := h.lately(ctx)
	if err != nil {
		return err
	}
	l.list(taken, []admin.Activity{}, time.Now())
	return l.addProblems(ctx, h, taken)
}
