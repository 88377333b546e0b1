package main

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/internal/door"
)

func (a *app) uiCommand() *cobra.Command {
	var listen, by string
	var readOnly bool
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
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "show no actions, and refuse them")
	cmd.RunE = a.doLong(func(ctx context.Context, _ []string) error {
		return a.ui(ctx, listen, cmp.Or(by, login()), readOnly)
	})
	return cmd
}

func (a *app) ui(ctx context.Context, listen, by string, readOnly bool) error {
	token := a.env("MILLRACE_UI_TOKEN")
	a.secrets.add(token)
	d, err := door.New(listen, token, by)
	if err != nil {
		return &coded{exitUsage, err}
	}
	store, err := a.store(ctx)
	if err != nil {
		return err
	}
	out, err := a.publisher(ctx)
	if err != nil {
		return err
	}
	pages, err := dashboard.New(store, dashboard.Config{Outbox: out, Operator: d.Operator, ReadOnly: readOnly})
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
