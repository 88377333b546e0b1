package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
)

// place is a database that the user named.
type place struct {
	name    string // "" if it is the only one, and has none
	dsn     string
	db      *sqlx.DB // nil until connect
	dialect string
	err     error // why the user named none
}

var withName = regexp.MustCompile(`^([A-Za-z0-9_-]+)=(.+)$`)

// placeOf reads DSN or NAME=DSN.
func placeOf(text string) *place {
	if parts := withName.FindStringSubmatch(text); parts != nil {
		if _, err := sourceOf(parts[2]); err == nil {
			return &place{name: parts[1], dsn: parts[2]}
		}
	}
	return &place{dsn: text}
}

// places finds the databases that the user named. If there is one, or --on chooses one, it becomes a.at.
func (a *app) places() error {
	if a.named != nil {
		return nil
	}
	given, err := a.given()
	for _, text := range given {
		p := placeOf(text)
		a.secrets.add(p.dsn)
		a.named = append(a.named, p)
	}
	if err := a.distinct(); err != nil {
		return err
	}
	switch {
	case len(a.named) == 0:
		a.at = &place{err: err} // connect says what is missing
	case a.flags.on != "":
		i := slices.IndexFunc(a.named, func(p *place) bool { return p.name == a.flags.on })
		if i < 0 {
			return usagef("--on %s: no database has this name; there are: %s", a.flags.on, a.placeNames())
		}
		a.at = a.named[i]
	case len(a.named) == 1:
		a.at = a.named[0]
	}
	return nil
}

// given returns the databases that the user named.
func (a *app) given() ([]string, error) {
	switch {
	case len(a.flags.dsn) > 0 && a.flags.context != "":
		return nil, usagef("--dsn and --context both name a database: leave one out")
	case len(a.flags.dsn) > 0:
		return a.flags.dsn, nil
	case a.flags.context == "" && a.env("MILLRACE_DSN") != "":
		return dsnsOf(a.env("MILLRACE_DSN")), nil
	}
	return a.fromContext()
}

// dsnsOf returns the databases of a text: one DSN, or several NAME=DSN between white space.
func dsnsOf(text string) []string {
	fields := strings.Fields(text)
	for _, f := range fields {
		if placeOf(f).name == "" {
			return []string{text} // white space in a DSN
		}
	}
	return fields
}

// distinct returns an error if several databases cannot be told apart by their names.
func (a *app) distinct() error {
	if len(a.named) < 2 {
		return nil
	}
	seen := make(map[string]bool)
	for _, p := range a.named {
		if p.name == "" {
			return usagef("several databases are given: name each, as in --dsn eu=postgres://… --dsn us=postgres://…")
		}
		if seen[p.name] {
			return usagef("two databases are named %s", p.name)
		}
		seen[p.name] = true
	}
	return nil
}

func (a *app) placeNames() string {
	var all []string
	for _, p := range a.named {
		all = append(all, p.name)
	}
	return strings.Join(all, ", ")
}

// severalNamed is the error of a command that works on one database.
func (a *app) severalNamed() error {
	return usagef("this works on one database: choose it with --on; there are: %s", a.placeNames())
}

// one runs do on the database of the command.
func (a *app) one(ctx context.Context, do func(context.Context) error) error {
	if err := a.places(); err != nil {
		return err
	}
	return do(ctx)
}

// each runs do on each database. One that fails hinders no other; its error is printed where its results would be.
func (a *app) each(ctx context.Context, do func(context.Context) error) error {
	if err := a.places(); err != nil {
		return err
	}
	if a.at != nil {
		return do(ctx)
	}
	a.several = true
	defer func() { a.at, a.several = nil, false }()
	var codes []int
	for i, p := range a.named {
		a.at = p
		if a.forPeople() {
			a.printf("%s== %s\n", strings.Repeat("\n", min(i, 1)), p.name)
		}
		err := do(ctx)
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err()) // the others were not asked
		}
		codes = append(codes, a.printFailure(err))
	}
	if code := overall(codes); code != exitDone {
		return &silent{code}
	}
	return nil
}

// printFailure prints err as the result of a database, and returns the exit code for it, negative if the database
// does not have what was asked for.
func (a *app) printFailure(err error) int {
	var quiet *silent
	var unknown *unknownKey
	if err == nil || errors.As(err, &quiet) {
		return exitCode(err)
	}
	err = a.understood(err)
	if a.forPeople() {
		a.printf("%s\n", spoken(err))
	} else {
		_ = a.document(map[string]string{"database": a.at.name, "error": spoken(err)}) // cannot fail
	}
	if errors.As(err, &unknown) || exitCode(err) == exitNotFound {
		return -exitCode(err)
	}
	return exitCode(err)
}

// overall returns the exit code for those of the databases. It is enough that one has what was asked for.
func overall(codes []int) int {
	if worst := slices.Max(codes); worst >= exitDone {
		return worst
	}
	return -codes[0]
}

// close closes the pools.
func (a *app) close() error {
	var err error
	for _, p := range a.named {
		if p.db != nil {
			err = errors.Join(err, p.db.Close())
		}
	}
	return err
}
