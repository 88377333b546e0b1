package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/dialect"
)

var dialects = []string{dialect.PostgresName, dialect.MySQLName, dialect.SQLiteName}

func (a *app) schemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema [" + strings.Join(dialects, "|") + "]",
		Short: "Print the DDL of all tables, without a database",
		Long: `Prints the DDL of all tables for services that keep migrations of their own: for the
database that the argument names, else for that of the DSN, which it does not connect to.
mysql is for MariaDB too.`,
		Example:   "  millrace schema postgres > migrations/0007_millrace.sql\n  millrace schema mysql --prefix shop_",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: dialects,
	}
	cmd.RunE = a.do(func(_ context.Context, args []string) error { return a.schema(args) })
	return cmd
}

func (a *app) schema(args []string) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
	} else {
		if a.at == nil {
			return a.severalNamed()
		}
		from, err := sourceOf(a.at.dsn)
		if errors.Is(err, errNoDSN) {
			return usagef("for which database? name one of %s", strings.Join(dialects, ", "))
		}
		if err != nil {
			return &coded{exitUsage, err}
		}
		name = from.dialect
	}
	if problems := a.names().Problems(name); len(problems) > 0 {
		return usagef("%w", errors.Join(problems...))
	}
	if a.flags.schema != "" && name != dialect.PostgresName {
		return usagef("--schema is for PostgreSQL: elsewhere the DSN names the database")
	}
	ddl := dialect.For(name, a.names()).Schema()
	return a.print(map[string]string{"dialect": name, "schema": ddl}, func() string { return ddl })
}
