package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/door"
)

func (a *app) uiCommand() *cobra.Command {
	var listen, by string
	var config dashboard.Config
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve the dashboard",
		Long: `Serves the dashboard until it is interrupted. If other machines can reach its
address, set a token in MILLRACE_UI_TOKEN: people sign in with it under their own name.`,
		Example: "  millrace ui\n  MILLRACE_UI_TOKEN=$(openssl rand -hex 16) millrace ui --listen :8642",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8642", "the `address`")
	cmd.Flags().StringVar(&by, "by", "", "`who` acts, at this machine; user@host unless given")
	cmd.Flags().BoolVar(&config.ReadOnly, "read-only", false, "show no actions, and refuse them")
	cmd.Flags().StringVar(&config.Title, "title", "", "the `name` of the system, such as 'shop, production'")
	cmd.Flags().StringVar(&config.Trace, "trace", "", "the `address` of a trace, with {trace} where its ID belongs")
	cmd.Flags().StringVar(&config.Color, "color", "", "the `color` of the environment: red, orange, green, blue, purple, grey")
	cmd.RunE = a.doLong(func(ctx context.Context, _ []string) error {
		return a.ui(ctx, listen, cmp.Or(by, login()), config)
	})
	return cmd
}

func (a *app) ui(ctx context.Context, listen, by string, config dashboard.Config) error {
	token := a.env("MILLRACE_UI_TOKEN")
	a.secrets.add(token)
	d, err := door.New(listen, token, by)
	if err != nil {
		return &coded{exitUsage, err}
	}
	config.Operator, config.Title = d.Operator, cmp.Or(config.Title, a.context)
	pages, err := a.pages(ctx, config)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.notef("the dashboard is at http://%s/\n", listener.Addr())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { _ = pages.Run(ctx) }() // it ends with ctx and returns no error
	return d.Serve(ctx, listener, pages)
}

// pages returns the dashboard of the database, or of all that the user named.
func (a *app) pages(ctx context.Context, config dashboard.Config) (servedPages, error) {
	if a.at != nil {
		return a.pagesOf(ctx, config)
	}
	a.lenient = true // the others are shown
	handlers := make(map[string]*dashboard.Handler)
	for _, p := range a.named {
		a.at = p
		var err error
		if handlers[p.name], err = a.pagesOf(ctx, config); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return dashboard.NewDatabases(handlers)
}

type servedPages interface {
	http.Handler
	Run(ctx context.Context) error
}

func (a *app) pagesOf(ctx context.Context, config dashboard.Config) (*dashboard.Handler, error) {
	store, err := a.storeWith(ctx, tuned, inbox.Config{
		Logger: watermill.NopLogger{}, AllowPayloadChange: true, // its pages say what is wrong
	})
	if err != nil {
		return nil, err
	}
	if config.Outbox, err = a.publisher(ctx); err != nil {
		return nil, err
	}
	config.Database = a.at.dsn // it shows no more than user@host/database
	pages, err := dashboard.New(store, config)
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	return pages, nil
}
