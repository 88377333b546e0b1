package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/outbox"
)

// connect opens the database that the user named and checks that it answers.
func (a *app) connect(ctx context.Context, how manner) (*sqlx.DB, error) {
	if a.at == nil {
		return nil, a.severalNamed()
	}
	if a.at.db != nil {
		return a.at.db, nil
	}
	if a.at.err != nil {
		return nil, a.at.err
	}
	from, err := sourceOf(a.at.dsn)
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	db, err := from.open(how, a.secrets)
	if errors.Is(err, errNoFile) {
		return nil, &coded{exitUnreachable, err}
	}
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	err = db.PingContext(ctx)
	if err != nil && strings.Contains(err.Error(), "unsupported startup parameter") {
		_ = db.Close()
		if db, err = from.open(asGiven, a.secrets); err == nil { // a pooler refuses our settings
			err = db.PingContext(ctx)
		}
	}
	if err != nil && !a.lenient {
		_ = db.Close()
		return nil, &coded{exitUnreachable, fmt.Errorf("the database cannot be reached: %w", err)}
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	a.at.db, a.at.dialect = db, from.dialect
	return db, nil
}

// connections is how many connections a command uses at most.
const connections = 4

func (a *app) store(ctx context.Context) (*inbox.Store, error) {
	return a.storeWith(ctx, tuned, inbox.Config{})
}

// storeWith returns a store on the database, with the tables that the flags name.
func (a *app) storeWith(ctx context.Context, how manner, config inbox.Config) (*inbox.Store, error) {
	db, err := a.connect(ctx, how)
	if err != nil {
		return nil, err
	}
	config.Dialect, config.Schema, config.TablePrefix = a.at.dialect, a.flags.schema, a.flags.prefix
	config.Namespace = a.flags.namespace
	if config.Logger == nil {
		config.Logger = warnings{app: a}
	}
	store, err := inbox.NewStore(db, config)
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	if len(a.secrets.passwords) > 0 && !a.lenient {
		known, _ := admin.New(store).Consumers(ctx) //nolint:errcheck // the command itself says what is wrong
		for _, c := range known {
			a.secrets.show(c.Name)
		}
	}
	return store, nil
}

// now returns the time of the database's clock, by which all times in the tables are.
func (a *app) now(ctx context.Context) (time.Time, error) {
	db, err := a.connect(ctx, tuned)
	if err != nil {
		return time.Time{}, err
	}
	var now int64
	if err := db.GetContext(ctx, &now, dialect.For(a.at.dialect, a.names()).Now); err != nil {
		return time.Time{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return time.UnixMicro(now).UTC(), nil
}

// publisher returns the outbox in the same database.
func (a *app) publisher(ctx context.Context) (*outbox.Publisher, error) {
	db, err := a.connect(ctx, tuned)
	if err != nil {
		return nil, err
	}
	out, err := outbox.NewPublisher(db, outbox.Config{
		Dialect: a.at.dialect, Schema: a.flags.schema, TablePrefix: a.flags.prefix, Standalone: true,
	})
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	return out, nil
}

// names returns where the flags say the tables are.
func (a *app) names() dialect.Names {
	return dialect.Names{Schema: a.flags.schema, Prefix: a.flags.prefix}
}
