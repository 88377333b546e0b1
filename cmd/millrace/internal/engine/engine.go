// Package engine tries on a server whether it does what Millrace's statements assume. It works in tables of its own,
// with several connections at once.
package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// Verdict is what a try found out.
type Verdict string

// Verdicts. AtCommit is a server that finds conflicts only at COMMIT: nothing is done twice, but copies of a message
// do not wait for each other. Untried is a feature whose try could not be finished.
const (
	Fit      Verdict = "fit"
	AtCommit Verdict = "fit at COMMIT"
	Unfit    Verdict = "unfit"
	Untried  Verdict = "not tried"
)

// Feature is something that Millrace assumes of a server, and whether the server does it.
type Feature struct {
	Name     string
	For      string // the parts of Millrace that need it
	Optional bool   // Millrace works without it
	Verdict
	Found  string // what the server did instead; empty if it is fit
	Remedy string // the way out; empty if it is fit
}

// TablePrefix begins the names of all tables that a trial makes.
const TablePrefix = "millrace_try_"

// Trial is one run of the tries.
type Trial struct {
	// Pools are connected to the same database, each to another node if it has several. A pool must allow
	// eight connections.
	Pools   []*sqlx.DB
	Dialect string
	Schema  string

	// Wait is how long a statement that has to wait for another transaction is watched. Defaults to 500 ms.
	Wait time.Duration

	// Patience is for what happens at once on a server that is fit, and has time for other work. Defaults to 15 s.
	Patience time.Duration

	// Prepared, unless it is nil, is called when the tables are there.
	Prepared func(ctx context.Context, prefix string) error

	prefix string
	nodes  []*database.DB
	sql    *dialect.Dialect
	tokens int64
}

// longest bounds the try of one feature.
const longest = 2 * time.Minute

// try finds out about a feature. Its run returns what the server does wrong, or an error if it cannot tell.
type try struct {
	name     string
	parts    string
	only     string // the dialect that has it; empty for all
	optional bool
	remedy   string
	run      func(ctx context.Context, t *Trial) (found string, err error)
}

// Run makes the tables, tries each feature and drops the tables, also if ctx ends. An error says that the server cannot
// be tried at all, or that tables are left.
func (t *Trial) Run(ctx context.Context) (features []Feature, err error) {
	t.prefix = TablePrefix + strings.ToLower(rand.Text()[:8]) + "_"
	for _, pool := range t.Pools {
		node, err := database.Open(pool, t.Dialect, dialect.Names{Schema: t.Schema, Prefix: t.prefix})
		if err != nil {
			return nil, err
		}
		t.nodes = append(t.nodes, node)
	}
	t.sql = t.nodes[0].Dialect
	if t.Wait == 0 {
		t.Wait = 500 * time.Millisecond
	}
	if t.Patience == 0 {
		t.Patience = 15 * time.Second
	}
	defer func() {
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
		defer cancel()
		err = errors.Join(err, t.drop(rest))
	}()
	for _, one := range tries {
		if one.only != "" && one.only != t.Dialect {
			continue
		}
		features = append(features, t.judge(ctx, one))
		if err := ctx.Err(); err != nil {
			return features, err
		}
	}
	return features, nil
}

func (t *Trial) judge(ctx context.Context, one try) Feature {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	f := Feature{Name: one.name, For: one.parts, Optional: one.optional, Verdict: Fit}
	found, err := one.run(ctx, t)
	for tries := 0; contended(err) && tries < 3; tries++ { // as Millrace does
		found, err = one.run(ctx, t)
	}
	switch {
	case err != nil:
		f.Verdict, f.Found, f.Remedy = Untried, err.Error(), one.remedy
	case found == lateConflicts:
		f.Verdict, f.Found = AtCommit, found
		f.Remedy = "none needed for what handlers do in their transaction, since a message whose COMMIT failed is tried again; " +
			"connect all processes to one node if handlers do other things too, or if such failures are too many"
	case found != "":
		f.Verdict, f.Found, f.Remedy = Unfit, found, one.remedy
	}
	return f
}

// tables makes the tables as Migrate does. If that fails it makes what can be made, for the other tries.
func tables(ctx context.Context, t *Trial) (string, error) {
	failure := t.sql.Migrate(ctx, t.nodes[0].DB)
	if failure != nil {
		for s := range strings.SplitSeq(t.sql.Schema(), ";\n") {
			_, _ = t.nodes[0].ExecContext(ctx, s) // the first failure is reported
		}
	}
	if t.Prepared != nil {
		if err := t.Prepared(ctx, t.prefix); err != nil {
			return "", err
		}
	}
	if failure != nil {
		return refused(failure)
	}
	return "", nil
}

func (t *Trial) drop(ctx context.Context) error {
	var left []string
	for _, statement := range t.sql.DropViews() {
		_, err := t.nodes[0].ExecContext(ctx, statement)
		if err != nil {
			left = append(left, statement)
		}
	}
	for _, table := range t.sql.Tables() {
		name := table.Name
		if t.Schema != "" {
			name = `"` + t.Schema + `".` + name
		}
		_, err := t.nodes[0].ExecContext(ctx, `DROP TABLE IF EXISTS `+name)
		for contended(err) && rest(ctx) == nil { // a connection that was given up may hold a lock for a moment
			_, err = t.nodes[0].ExecContext(ctx, `DROP TABLE IF EXISTS `+name)
		}
		if err != nil {
			left = append(left, name)
		}
	}
	if left != nil {
		return fmt.Errorf("these are left, drop them: %s", strings.Join(left, ", "))
	}
	return nil
}

// node returns the i-th node, counted round.
func (t *Trial) node(i int) *database.DB { return t.nodes[i%len(t.nodes)] }

// token returns a number that no row has yet.
func (t *Trial) token() int64 {
	t.tokens++
	return t.tokens
}

// store returns an inbox in the tables of the trial.
func (t *Trial) store(i int) (*inbox.Store, error) {
	return inbox.NewStore(t.node(i).DB, inbox.Config{
		Dialect: t.Dialect, Schema: t.Schema, TablePrefix: t.prefix, WithoutPlugin: true, Logger: watermill.NopLogger{},
	})
}

// refused is what a run returns if the server refuses what is tried.
func refused(err error) (found string, tried error) { return err.Error(), nil }

// contended reports whether Millrace tries a transaction that ended so again.
func contended(err error) bool { return dialect.Classify(err) == dialect.Contention }
