package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/cmd/millrace/internal/engine"
	"github.com/millrace-go/millrace/internal/dialect"
)

// feature is an engine.Feature in JSON.
type feature struct {
	Feature  string `json:"feature"`
	Verdict  string `json:"verdict"`
	Optional bool   `json:"optional"`
	For      string `json:"for"`
	Found    string `json:"found,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
}

// tryConnections is how many connections a trial needs of each node.
const tryConnections = 8

// checkEngine tries what the statements assume of the server, and of other nodes of it.
func (a *app) checkEngine(ctx context.Context, strict bool, nodes []string) error {
	db, err := a.connect(ctx, asGiven)
	if err != nil {
		return err
	}
	if a.at.dialect == dialect.SQLiteName {
		return usagef("--engine is for servers: SQLite is part of the command")
	}
	db.SetMaxOpenConns(tryConnections)
	trial := &engine.Trial{Pools: []*sqlx.DB{db}, Dialect: a.at.dialect, Schema: a.flags.schema}
	for _, dsn := range nodes {
		other, err := a.node(ctx, dsn)
		if err != nil {
			return err
		}
		defer other.Close() //nolint:errcheck // the trial has ended
		trial.Pools = append(trial.Pools, other)
	}
	began := time.Now()
	features, err := trial.Run(ctx)
	if err != nil {
		return err
	}
	if err := a.printEngine(features, time.Since(began)); err != nil {
		return err
	}
	for _, f := range features {
		if f.Verdict != engine.Fit && (strict || !f.Optional && f.Verdict != engine.AtCommit) {
			return &silent{exitFailed}
		}
	}
	return nil
}

// node opens another node of the database that a.connect opened.
func (a *app) node(ctx context.Context, dsn string) (*sqlx.DB, error) {
	a.secrets.add(dsn)
	from, err := sourceOf(dsn)
	if err == nil && from.dialect != a.at.dialect {
		err = fmt.Errorf("--node is of %s, the database is of %s", from.dialect, a.at.dialect)
	}
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	db, err := from.open(asGiven, a.secrets)
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close()
		return nil, &coded{exitUnreachable, fmt.Errorf("a node cannot be reached: %w", err)}
	}
	db.SetMaxOpenConns(tryConnections)
	return db, nil
}

func (a *app) printEngine(features []engine.Feature, took time.Duration) error {
	all := []feature{}
	for _, f := range features {
		all = append(all, feature{f.Name, string(f.Verdict), f.Optional, f.For, f.Found, f.Remedy})
	}
	return a.print(map[string]any{"features": all, "seconds": seconds(took)}, func() string { return featuresText(features) })
}

func featuresText(features []engine.Feature) string {
	var b strings.Builder
	t := newTable("FEATURE", "VERDICT", "FOR")
	unfit, without := 0, ""
	for _, f := range features {
		verdict := string(f.Verdict)
		if f.Verdict != engine.Fit {
			switch {
			case f.Optional:
				verdict += ", optional"
			case f.Verdict != engine.AtCommit:
				unfit++
			}
			without += fmt.Sprintf("\n%s: %s\n  %s.\n  Way out: %s.\n", verdict, f.Name, oneLine(f.Found), f.Remedy)
		}
		t.add(f.Name, verdict, f.For)
	}
	b.WriteString(t.String() + without + "\n")
	if unfit == 0 {
		b.WriteString("The server does all that Millrace needs.\n")
	} else {
		fmt.Fprintf(&b, "The server lacks %d of %d features, or they could not be tried.\n", unfit, len(features))
	}
	return b.String()
}
